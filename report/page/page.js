"use strict";
/* Makes the player move and shows the frame of a point. All texts go in as text, never as markup. */

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

function svg(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** Make an element a window on one tile of a video's sheet. */
function showTile(element, video, tile, label) {
  const columns = data.videos[video].columns;
  element.className = tile === null ? "tile missing"
    : `tile v${video} v${video}x${tile % columns} v${video}y${Math.floor(tile / columns)}`;
  element.textContent = tile === null ? "no picture" : "";
  element.setAttribute("aria-label", label);
}

/* The player */

class Side {
  constructor(name) {
    this.select = byId(`${name}-video`);
    this.tile = byId(`${name}-tile`);
    this.time = byId(`${name}-time`);
    this.phase = byId(`${name}-phase`);
    this.line = byId(`${name}-line`);
  }

  get video() {
    return Number(this.select.value);
  }

  offer(videos) {
    this.select.replaceChildren(...videos.map((index) => new Option(data.videos[index].name, index)));
    this.drawLine();
  }

  drawLine() {
    const { runs, count } = data.videos[this.video];
    this.marker = svg("g", { class: "marker" });
    this.marker.append(...[0, 1].map(() => svg("line", { y1: 0, y2: 10 })));  // one below the other, as an edge
    const bands = runs.map(([first, after, phase]) => svg("rect", {
      class: `p${phase % data.colours}`, x: 100 * first / count, y: 0, width: 100 * (after - first) / count, height: 10,
    }));
    this.line.replaceChildren(...bands, this.marker);
  }

  show(tile) {
    const video = data.videos[this.video];
    const frame = tile === null ? "no frame" : `frame ${video.frames[tile]}`;
    showTile(this.tile, this.video, tile, `${video.name}, ${frame}`);
    this.time.textContent = tile === null ? "" : `${video.times[tile]}, ${frame}`;
    this.phase.textContent = tile === null ? "" : video.phases[tile];
    const x = tile === null ? -10 : 100 * (video.frames[tile] + 0.5) / video.count;
    this.marker.setAttribute("transform", `translate(${x} 0)`);
  }
}

class Player {
  constructor(matches) {
    this.matches = matches;
    this.query = new Side("query");
    this.candidate = new Side("candidate");
    this.scrub = byId("scrub");
    this.button = byId("play");
    this.timer = null;
    this.query.offer([...new Set(matches.map((match) => match.query))]);
    this.query.select.addEventListener("change", () => this.chooseVideo());
    this.candidate.select.addEventListener("change", () => this.chooseOther());
    this.scrub.addEventListener("input", () => this.show());
    this.button.addEventListener("click", () => this.press());
    reducedMotion.addEventListener("change", () => this.pause());
    this.pause();
    this.chooseVideo();
    byId("stage").hidden = false;
  }

  get tile() {
    return Number(this.scrub.value);
  }

  chooseVideo() {
    this.pause();
    this.query.drawLine();
    const matches = this.matches.filter((match) => match.query === this.query.video);
    this.candidate.offer(matches.map((match) => match.candidate));
    this.scrub.max = data.videos[this.query.video].frames.length - 1;
    this.scrub.value = 0;
    this.chooseOther();
  }

  chooseOther() {
    this.candidate.drawLine();
    this.match = this.matches.find(
      (match) => match.query === this.query.video && match.candidate === this.candidate.video);
    this.show();
  }

  show() {
    this.query.show(this.tile);
    this.candidate.show(this.match.tiles[this.tile]);
    this.scrub.setAttribute("aria-valuetext", this.query.time.textContent);
  }

  /** Play or pause; one frame for each press where the reader asked for little motion. */
  press() {
    if (reducedMotion.matches) this.step();
    else if (this.timer !== null) this.pause();
    else this.play();
  }

  play() {
    if (this.tile >= Number(this.scrub.max)) {
      this.scrub.value = 0;
      this.show();
    }
    this.button.textContent = "Pause";
    this.wait();
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = null;
    this.button.textContent = reducedMotion.matches ? "Step" : "Play";
  }

  /** At the speed of the video, as far as its sheet has frames. */
  wait() {
    const { seconds } = data.videos[this.query.video];
    const gap = seconds[this.tile + 1] - seconds[this.tile];
    this.timer = setTimeout(() => {
      this.step();
      if (this.tile >= Number(this.scrub.max)) this.pause();
      else this.wait();
    }, 1000 * Math.min(Math.max(gap, 0.02), 2) || 40);
  }

  step() {
    this.scrub.value = this.tile >= Number(this.scrub.max) ? 0 : this.tile + 1;
    this.show();
  }
}

/* Points of the projection */

const REACH_PX = 18;
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

class Plot {
  constructor(when, chooser) {
    this.svg = document.querySelector(`.cloud.${when}`);
    this.places = data.projection[when];
    this.points = [...this.svg.querySelector(".points").children];
    this.ring = svg("circle", { r: 8, visibility: "hidden" });
    this.svg.querySelector(".found").append(this.ring);
    this.svg.setAttribute("role", "group");
    this.stop = null;
    this.chooser = chooser;
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && chooser.clear());
    this.svg.addEventListener("focusin", () => chooser.choose(this.stop, this));
    this.svg.addEventListener("focusout", () => chooser.clear());
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.setStop(0);
  }

  /** Tab stops at one point of the plot; the arrow keys move it. */
  setStop(index) {
    if (this.stop !== null) this.points[this.stop].removeAttribute("tabindex");
    this.stop = index;
    this.points[index].setAttribute("tabindex", "0");
    this.points[index].setAttribute("role", "img");
    this.points[index].setAttribute("aria-label", describe(index).join(", "));
  }

  key(event) {
    const step = STEPS[event.key];
    if (event.key === "Escape") this.chooser.clear();
    if (!step) return;
    event.preventDefault();
    this.setStop((this.stop + step + this.points.length) % this.points.length);
    this.points[this.stop].focus();
  }

  point(event) {
    const index = this.nearest(event.clientX, event.clientY);
    if (index === null) this.chooser.clear();
    else this.chooser.choose(index, this);
  }

  nearest(clientX, clientY) {
    const box = this.svg.getBoundingClientRect();
    const scale = box.width / this.svg.viewBox.baseVal.width;
    const distances = this.places.map(([x, y]) => Math.hypot(box.left + x * scale - clientX, box.top + y * scale - clientY));
    const least = distances.reduce((best, distance, index) => (distance < distances[best] ? index : best), 0);
    return distances[least] <= REACH_PX ? least : null;
  }

  /** Where a point is in the window. */
  place(index) {
    const box = this.svg.getBoundingClientRect();
    const scale = box.width / this.svg.viewBox.baseVal.width;
    return this.places[index].map((value, axis) => (axis ? box.top : box.left) + value * scale);
  }

  mark(index) {
    this.ring.setAttribute("visibility", index === null ? "hidden" : "visible");
    if (index === null) return;
    const [x, y] = this.places[index];
    this.ring.setAttribute("cx", x);
    this.ring.setAttribute("cy", y);
  }
}

function describe(index) {
  const [video, , frame, time, phase] = data.projection.points[index];
  return [data.videos[video].name, `frame ${frame}, ${time}`, phase].filter(Boolean);
}

class Chooser {
  constructor() {
    this.card = byId("card");
    document.body.append(this.card);
    this.plots = ["before", "after"].map((when) => new Plot(when, this));
    document.addEventListener("pointerdown", (event) => event.target.closest(".cloud") || this.clear());
  }

  choose(index, plot) {
    const [video, tile] = data.projection.points[index];
    const lines = describe(index);
    showTile(byId("card-tile"), video, tile, lines.join(", "));
    byId("card-text").textContent = lines.join("\n");
    this.plots.forEach((each) => each.mark(index));
    this.card.hidden = false;
    this.putBeside(...plot.place(index));
  }

  /** Right of the point, or left of it where there is no room; always wholly in the window. */
  putBeside(x, y) {
    const { offsetWidth: width, offsetHeight: height } = this.card;
    const { clientWidth, clientHeight } = document.documentElement;
    const left = x + 16 + width <= clientWidth ? x + 16 : x - 16 - width;
    this.card.style.left = `${scrollX + Math.max(4, Math.min(left, clientWidth - width - 4))}px`;
    this.card.style.top = `${scrollY + Math.max(4, Math.min(y - height / 2, clientHeight - height - 4))}px`;
  }

  clear() {
    this.card.hidden = true;
    this.plots.forEach((plot) => plot.mark(null));
  }
}

const playable = data.matches.filter((match) => match.tiles.length > 0);
if (byId("stage") && playable.length) new Player(playable);
if (data.projection && data.projection.points.length) new Chooser();
