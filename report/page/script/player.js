/* The player: this frame, beside it the nearest of the other video by each run, and what a clock would give. */

const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

/** A bar of a video's phases, on which a click is a frame. */
class Timeline {
  constructor(element, clicked) {
    this.element = element;
    element.addEventListener("click", (event) => {
      const box = element.getBoundingClientRect();
      const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
      clicked(this.video, momentAt(this.video, share * data.videos[this.video].count - 0.5));
    });
  }

  show(video, moment) {
    if (this.video !== video) this.draw(video);
    const x = (100 * (frameOf(video, moment) + 0.5)) / data.videos[video].count;
    this.marker.setAttribute("transform", `translate(${x} 0)`);
  }

  draw(video) {
    const { runs, count } = data.videos[video];
    this.video = video;
    // One line below the other, as an edge.
    this.marker = svg("g", { class: "marker" }, ...[0, 1].map(() => svg("line", { y1: 0, y2: 10 })));
    const bands = runs.map(([first, after, phase]) => svg("rect", {
      class: `p${phase % data.colors}`, x: (100 * first) / count, y: 0, width: (100 * (after - first)) / count, height: 10,
    }));
    this.element.replaceChildren(...bands, this.marker);
  }
}

class Side {
  constructor(name, state) {
    this.part = (what) => byId(`${name}-${what}`);
    this.line = new Timeline(this.part("line"), (video, moment) => {
      const { video: shown, other } = state.now;
      // A moment of the other video changes the roles.
      state.go(video === shown ? { moment } : { video, moment, other: video === other ? shown : other });
    });
  }

  show(video, moment, same = null) {
    showTile(this.part("tile"), video, moment);
    this.line.show(video, moment);
    this.part("time").textContent = momentText(video, moment);
    this.part("phase").textContent = phaseName(phaseOf(video, moment));
    showVerdict(this.part("verdict"), same);
  }
}

class Player {
  constructor(state, runs) {
    Object.assign(this, { state, runs, timer: null, step: 0 });
    this.query = new Side("query", state);
    this.answers = runs.map((_, index) => new Side(`run-${index}`, state));
    this.clock = new Side("clock", state);
    this.scrub = byId("scrub");
    this.button = byId("play");
    this.fill();
    this.listen();
    this.pause();
    byId("stage").hidden = false;
    state.watch((now) => this.show(now));
  }

  fill() {
    const options = () => ["ego", "exo"].map((view) => html("optgroup", { label: view }, ...data.videos
      .map((video, index) => (video.view === view ? new Option(video.name, index) : null))));
    byId("choose-video").append(...options());
    byId("choose-other").append(...options());
  }

  listen() {
    const { state } = this;
    const chosen = (name, change) => byId(name).addEventListener("change", (event) => {
      this.pause();
      state.go(change(event.target.value));
    });
    chosen("choose-video", (value) => ({ video: Number(value), moment: 0 }));
    chosen("choose-other", (value) => ({ other: Number(value) }));
    chosen("choose-way", (value) => ({ way: value }));
    this.scrub.addEventListener("input", () => this.moveTo(Number(this.scrub.value)));
    this.button.addEventListener("click", () => this.press());
    reducedMotion.addEventListener("change", () => this.pause());
    document.addEventListener("keydown", (event) => this.key(event));
    document.querySelectorAll("#video-table .timeline").forEach((element, video) => {
      new Timeline(element, (_, moment) => state.go({ video, moment })).video = video;
    });
  }

  /** The path of the first run, along which both videos are played. */
  get path() {
    const { video, other } = this.state.now;
    return this.runs[0].compare(video, other).path;
  }

  get alongPath() {
    return this.state.now.way === "path";
  }

  get last() {
    return this.alongPath ? this.path.length - 1 : lastMoment(this.state.now.video);
  }

  moveTo(step) {
    this.step = step;
    this.state.pass({ moment: this.alongPath ? this.path[step][0] : step });
  }

  show({ video, moment, other, way }) {
    this.findStep();
    this.query.show(video, moment);
    this.answers.forEach((side, index) => {
      const found = this.answer(this.runs[index], index);
      side.part("title").textContent = `${this.alongPath ? "Aligned" : "Nearest"} by ${this.runs[index].name}`;
      side.show(other, found, samePhase(video, moment, other, found));
    });
    const byClock = clockMoment(video, moment, other);
    this.clock.show(other, byClock, samePhase(video, moment, other, byClock));
    byId("choose-video").value = video;
    byId("choose-other").value = other;
    byId("choose-way").value = way;
    this.scrub.max = this.last;
    this.scrub.value = this.step;
    this.scrub.setAttribute("aria-valuetext", momentText(video, moment));
    document.querySelectorAll("#video-table tbody tr").forEach((row, index) => row.classList.toggle("own", index === video));
  }

  /** Where on the slider the state is: on the path, the middle of what the path pairs with the moment. */
  findStep() {
    const { moment } = this.state.now;
    if (!this.alongPath) this.step = moment;
    else if (this.path[this.step]?.[0] !== moment) {
      const steps = this.path.flatMap(([row], step) => (row === moment ? [step] : []));
      this.step = steps[(steps.length - 1) >> 1];
    }
  }

  answer(run, index) {
    const { video, moment, other } = this.state.now;
    if (!this.alongPath) return run.nearest(video, moment, other).moment;
    if (index === 0) return this.path[this.step][1];
    const paired = run.compare(video, other).path.filter(([row]) => row === moment);
    return paired[(paired.length - 1) >> 1][1];
  }

  /** Arrow keys step and Space plays, unless what has the focus needs them itself. */
  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("select, textarea, input, .cloud, .scroll")) return;
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    if (event.key in steps) this.moveTo(Math.min(Math.max(this.step + steps[event.key], 0), this.last));
    else if (event.key === " " && !event.target.closest("button, a, summary")) this.press();
    else return;
    event.preventDefault();
  }

  /** Play or pause; one frame for each press where the reader asked for little motion. */
  press() {
    if (reducedMotion.matches) this.moveTo(this.step >= this.last ? 0 : this.step + 1);
    else if (this.timer !== null) this.pause();
    else this.play();
  }

  play() {
    if (this.step >= this.last) this.moveTo(0);
    this.button.textContent = "Pause";
    this.wait();
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = null;
    this.button.textContent = reducedMotion.matches ? "Step" : "Play";
  }

  /** At the speed of the video, as far as the page has its frames; along the path at one pace. */
  wait() {
    const { seconds } = data.videos[this.state.now.video];
    const pace = (seconds.at(-1) - seconds[0]) / this.last;
    const gap = this.alongPath ? pace : seconds[this.step + 1] - seconds[this.step];
    this.timer = setTimeout(() => {
      this.moveTo(Math.min(this.step + 1, this.last));
      if (this.step >= this.last) this.pause();
      else this.wait();
    }, 1000 * Math.min(Math.max(gap, 0.02), 2) || 40);
  }
}

/** The player's frames in a corner, while the player itself is out of sight. */
class Dock {
  constructor(state, runs) {
    this.closed = false;
    new IntersectionObserver(([entry]) => {
      byId("dock").hidden = this.closed || entry.isIntersecting;
    }).observe(byId("stage"));
    byId("dock-close").addEventListener("click", () => {
      this.closed = true;
      byId("dock").hidden = true;
    });
    state.watch(({ video, moment, other }) => {
      const found = runs[0].nearest(video, moment, other).moment;
      showTile(byId("dock-query"), video, moment);
      showTile(byId("dock-answer"), other, found);
      byId("dock-text").textContent = `${data.videos[video].name}, ${timeOf(video, moment)}\n`
        + `${data.videos[other].name}, ${timeOf(other, found)}`;
    });
  }
}
