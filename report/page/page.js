"use strict";
/* The interactive parts of a report. A sample is a frame included in the page, by its index in its video's `frames`.
   All text is inserted as text, never as markup. */

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

/** Create an HTML element. */
function html(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

function svg(name, attributes = {}) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

const decodeBytes = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));

/* Frames */

const frameOf = (video, sample) => data.videos[video].frames[sample];
const phaseOf = (video, sample) => data.videos[video].phases[sample];
const phaseName = (phase) => (phase === null ? "" : data.phases[phase]);
const timeText = (seconds) => `${seconds.toFixed(2)} s`;
const timeOf = (video, sample) => timeText(data.videos[video].seconds[sample]);
const sampleText = (video, sample) => `${timeOf(video, sample)}, frame ${frameOf(video, sample)}`;
const lastSample = (video) => data.videos[video].frames.length - 1;
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** Relative time in the video, from 0 to 1. */
const progressOf = (video, sample) => frameOf(video, sample) / Math.max(data.videos[video].count - 1, 1);

/** The sample nearest to a frame number, which may be fractional. */
function sampleAt(video, frame) {
  const gaps = data.videos[video].frames.map((each) => Math.abs(each - frame));
  return gaps.indexOf(Math.min(...gaps));
}

/** The sample of another video at the same relative time. */
const clockSample = (video, sample, other) => sampleAt(other, progressOf(video, sample) * (data.videos[other].count - 1));

/** Whether two samples have the same phase; null if a label is missing. */
function samePhase(video, sample, other, otherSample) {
  const [one, two] = [phaseOf(video, sample), phaseOf(other, otherSample)];
  return one === null || two === null ? null : one === two;
}

function showTile(element, video, sample) {
  const { name, columns } = data.videos[video];
  const [row, column] = [Math.floor(sample / columns), sample % columns];
  element.className = columns ? `tile v${video} v${video}r${row} c${columns}x${column}` : "tile missing";
  element.textContent = columns ? "" : "no picture";
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", `${name}, frame ${frameOf(video, sample)}`);
}

function showVerdict(element, same) {
  element.textContent = same === null ? "" : same ? "✓ same phase" : "✗ other phase";
  element.className = same === null ? "" : same ? "same" : "other";
}

/* Embeddings */

class Run {
  constructor({ name, width, step, numbers, taus }) {
    Object.assign(this, { name, width, step, taus });
    this.numbers = new Int8Array(decodeBytes(numbers).buffer);
    let first = 0;
    this.starts = data.videos.map(({ frames }) => (first += frames.length) - frames.length);
    this.pair = { key: null };
  }

  distance(video, sample, other, otherSample) {
    const { numbers, width } = this;
    const a = (this.starts[video] + sample) * width;
    const b = (this.starts[other] + otherSample) * width;
    let sum = 0;
    for (let at = 0; at < width; at += 1) {
      const difference = numbers[a + at] - numbers[b + at];
      sum += difference * difference;
    }
    return this.step * Math.sqrt(sum);
  }

  nearest(video, sample, other) {
    let [best, least] = [0, Infinity];
    for (let at = 0; at <= lastSample(other); at += 1) {
      const distance = this.distance(video, sample, other, at);
      if (distance < least) [best, least] = [at, distance];
    }
    return { sample: best, distance: least };
  }

  /** All distances between two videos, the nearest column of each row and the warp path. The last pair is cached. */
  compare(video, other) {
    const key = `${video} ${other}`;
    if (this.pair.key !== key) {
      const [rows, columns] = [lastSample(video) + 1, lastSample(other) + 1];
      const nearest = Array.from({ length: rows }, (_, row) => this.nearest(video, row, other).sample);
      const distances = new Float64Array(rows * columns)
        .map((_, cell) => this.distance(video, Math.floor(cell / columns), other, cell % columns));
      this.pair = { key, rows, columns, distances, nearest, path: warpPath(distances, rows, columns) };
    }
    return this.pair;
  }
}

/** Dynamic time warping as in byov-align, in the browser because any two videos can be compared. */
function warpPath(distances, rows, columns) {
  const costs = new Float64Array(rows * columns);
  const cost = ([row, column]) => (row < 0 || column < 0 ? Infinity : costs[row * columns + column]);
  const before = ([row, column]) => [[row - 1, column - 1], [row - 1, column], [row, column - 1]]
    .reduce((best, cell) => (cost(cell) < cost(best) ? cell : best));
  costs.forEach((_, index) => {
    const cheapest = index ? cost(before([Math.floor(index / columns), index % columns])) : 0;
    costs[index] = distances[index] + cheapest;
  });
  const path = [[rows - 1, columns - 1]];
  while (path[0][0] || path[0][1]) path.unshift(before(path[0]));
  return path;
}

/** The middle of the steps with a row. */
function middleStep(path, row) {
  const first = path.findIndex(([each]) => each === row);
  const last = path.findLastIndex(([each]) => each === row);
  return (first + last) >> 1;
}

/* State: what the player shows. It is also the address of the page, so it can be shared and the back button works. */

const SETTLED_MS = 300;  // browsers reject frequent changes of the address

class State {
  constructor() {
    this.watchers = [];
    this.timer = null;
    const first = Math.max(data.videos.findIndex(({ view }) => view === "ego"), 0);
    this.now = { video: first, sample: 0, other: first, mode: "nearest" };
    this.set({});
    this.readAddress();
    addEventListener("popstate", () => this.readAddress());
    addEventListener("hashchange", () => this.readAddress());
  }

  watch(watcher) {
    this.watchers.push(watcher);
    watcher(this.now);
  }

  /** Change the state by a click, which adds a history entry. */
  go(change) {
    this.set(change);
    this.writeAddress("pushState");
  }

  /** Change the state while playing or dragging the slider. */
  pass(change) {
    this.set(change);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.writeAddress("replaceState"), SETTLED_MS);
  }

  /** A new video is compared with one of the other view if possible, preferably one that was shown before. */
  set(change) {
    const next = { ...this.now, ...change };
    const others = [next.other, this.now.video, ...data.videos.keys()].filter((index) => index in data.videos && index !== next.video);
    const across = others.find((index) => data.videos[index].view !== data.videos[next.video].view);
    const isChosen = others[0] === next.other && ("other" in change || next.video === this.now.video);
    next.other = (isChosen ? next.other : across ?? others[0]) ?? next.video;
    next.sample = clamp(next.sample, 0, lastSample(next.video));
    this.now = next;
    this.watchers.forEach((watcher) => watcher(next));
  }

  writeAddress(method) {
    clearTimeout(this.timer);
    const { video, sample, other, mode } = this.now;
    const address = addressOf(video, sample, other) + (mode === "path" ? "&play=path" : "");
    if (location.hash === address) return;
    try {
      history[method](null, "", address);
    } catch {
      // Some browsers forbid this for local files; the page works without it.
    }
  }

  /** Addresses that name no video, such as those of sections, change nothing. */
  readAddress() {
    const read = Object.fromEntries(new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B")));
    const find = (name) => data.videos.findIndex((video) => video.name === name);
    const video = find(read.video);
    if (video < 0) return;
    const partner = "with" in read ? { other: find(read.with) } : {};
    const mode = read.play === "path" ? "path" : this.now.mode;
    this.set({ video, sample: sampleAt(video, Number(read.frame) || 0), ...partner, mode });
  }
}

function addressOf(video, sample, other = null) {
  const encoded = (index) => encodeURIComponent(data.videos[index].name).replaceAll("%2F", "/");
  return `#video=${encoded(video)}&frame=${frameOf(video, sample)}${other === null ? "" : `&with=${encoded(other)}`}`;
}

/* Player */

/** A bar of phases; a click selects a frame. The video table has the bars of all videos. */
class Timeline {
  constructor(element, state, video = null) {
    Object.assign(this, { element, video });
    this.marker = svg("line", { class: "marker", y2: 10 });
    element.addEventListener("click", (event) => {
      const box = element.getBoundingClientRect();
      const fraction = clamp((event.clientX - box.left) / box.width, 0, 1);
      state.go({ video: this.video, sample: sampleAt(this.video, fraction * data.videos[this.video].count - 0.5) });
    });
  }

  show(video, sample) {
    if (this.video !== video) {
      this.video = video;
      const bars = document.querySelectorAll("#video-table .timeline");
      this.element.replaceChildren(...(bars.length ? bars[video].cloneNode(true).children : []), this.marker);
    }
    const x = (100 * (frameOf(video, sample) + 0.5)) / data.videos[video].count;
    this.marker.setAttribute("transform", `translate(${x} 0)`);
  }
}

class Side {
  constructor(id, state) {
    this.part = (name) => byId(`${id}-${name}`);
    this.line = new Timeline(this.part("line"), state);
  }

  show(video, sample, same = null) {
    showTile(this.part("tile"), video, sample);
    this.line.show(video, sample);
    this.part("time").textContent = sampleText(video, sample);
    this.part("phase").textContent = phaseName(phaseOf(video, sample));
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
    this.listen(state);
    this.pause();
    state.watch((now) => this.show(now));
  }

  listen(state) {
    const onChange = (id, change) => byId(id).addEventListener("change", (event) => {
      this.pause();
      state.go(change(event.target.value));
    });
    onChange("choose-video", (value) => ({ video: Number(value), sample: 0 }));
    onChange("choose-other", (value) => ({ other: Number(value) }));
    onChange("choose-mode", (value) => ({ mode: value }));
    this.scrub.addEventListener("input", () => this.moveTo(Number(this.scrub.value)));
    this.button.addEventListener("click", () => this.press());
    document.addEventListener("keydown", (event) => this.key(event));
    document.querySelectorAll("#video-table .timeline").forEach((element, video) => {
      new Timeline(element, state, video);
    });
  }

  /** Pairs of samples in the order in which they are played. */
  steps(run) {
    const { video, other, mode } = this.state.now;
    const { path, nearest } = run.compare(video, other);
    return mode === "path" ? path : nearest.map((column, row) => [row, column]);
  }

  get last() {
    return this.steps(this.runs[0]).length - 1;
  }

  moveTo(step) {
    this.step = step;
    this.state.pass({ sample: this.steps(this.runs[0])[step][0] });
  }

  show({ video, sample, other, mode }) {
    this.query.show(video, sample);
    this.answers.forEach((side, index) => {
      const steps = this.steps(this.runs[index]);
      let step = middleStep(steps, sample);
      if (index === 0) step = this.step = steps[this.step]?.[0] === sample ? this.step : step;
      const found = steps[step][1];
      side.part("title").textContent = `${mode === "path" ? "Aligned" : "Nearest"} by ${this.runs[index].name}`;
      side.show(other, found, samePhase(video, sample, other, found));
    });
    const byClock = clockSample(video, sample, other);
    this.clock.show(other, byClock, samePhase(video, sample, other, byClock));
    byId("choose-video").value = video;
    byId("choose-other").value = other;
    byId("choose-mode").value = mode;
    this.scrub.max = this.last;
    this.scrub.value = this.step;
    this.scrub.setAttribute("aria-valuetext", sampleText(video, sample));
    document.querySelectorAll("#video-table tbody tr").forEach((row, index) => row.classList.toggle("own", index === video));
  }

  /** Arrow keys step and Space plays, unless the focused element uses these keys itself. */
  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest("select, input, .cloud, .scroll")) return;
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    if (event.key in steps) this.moveTo(clamp(this.step + steps[event.key], 0, this.last));
    else if (event.key === " " && !event.target.closest("button, a, summary")) this.press();
    else return;
    event.preventDefault();
  }

  /** Play or pause. */
  press() {
    if (this.timer !== null) this.pause();
    else {
      if (this.step >= this.last) this.moveTo(0);
      this.button.textContent = "Pause";
      this.wait();
    }
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = null;
    this.button.textContent = "Play";
  }

  /** Play the whole video in its duration. */
  wait() {
    const { seconds } = data.videos[this.state.now.video];
    this.timer = setTimeout(() => {
      this.moveTo(Math.min(this.step + 1, this.last));
      if (this.step >= this.last) this.pause();
      else this.wait();
    }, 1000 * clamp((seconds.at(-1) - seconds[0]) / this.last, 0.02, 2));
  }
}

/* Stills: linked frames with captions. A frame is a pair of video and sample. */

const RETRIEVED = 5;

/** A click shows the query in the player, compared with the video `other`. */
function still(frame, query, other, title, kind) {
  const same = frame === query ? null : samePhase(...query, ...frame);
  const [tile, verdict] = [html("span"), html("span")];
  showTile(tile, ...frame);
  showVerdict(verdict, same);
  const lines = [data.videos[frame[0]].name, sampleText(...frame), phaseName(phaseOf(...frame))];
  const texts = lines.filter(Boolean).map((textContent) => html("span", { textContent }));
  const caption = html("figcaption", {}, html("b", { textContent: title }), ...texts, verdict);
  const link = html("a", { className: "window", href: addressOf(...query, other) }, tile);
  const border = same === null ? "plain" : same ? "right" : "wrong";
  return html("figure", { className: `still ${kind ?? border}` }, link, caption);
}

function strip(query, found) {
  const stills = found.map((frame, rank) => still(frame, query, frame[0], `Nearest ${rank + 1}`));
  return html("div", { className: "strip" }, still(query, query, null, "Query", "query"), ...stills);
}

/** The nearest frames of the videos of the other view, nearest video first. */
function retrieve(run, video, sample) {
  const others = data.videos.flatMap(({ view }, other) => (view === data.videos[video].view ? [] : [other]));
  const found = others.map((other) => ({ other, ...run.nearest(video, sample, other) }));
  found.sort((one, two) => one.distance - two.distance);
  return found.slice(0, RETRIEVED).map(({ other, sample: at }) => [other, at]);
}

function startStrips(state, runs) {
  byId("examples").append(...data.strips.map(([query, ...found]) => strip(query, found)));
  state.watch(({ video, sample }) => byId("live-strips").replaceChildren(...runs.flatMap((run) => [
    html("h3", { textContent: `For the player's frame, by ${run.name}` }),
    strip([video, sample], retrieve(run, video, sample)),
  ])));
}

function showFailures() {
  data.failures.forEach((pairs, index) => byId(`worst-${index}`).append(...pairs.map(([query, match]) => {
    const isReference = `${query}` === `${data.reference}`;
    const above = still(query, query, match[0], isReference ? "Reference" : "", isReference ? "reference" : "");
    return html("div", { className: "above" }, above, still(match, query, match[0], ""));
  })));
}

function showVideoTable() {
  document.querySelectorAll("#video-table tbody th").forEach((cell, video) => {
    const [picture, name] = cell.querySelectorAll("a");
    const middle = (lastSample(video) + 1) >> 1;
    showTile(picture.firstChild, video, middle);
    picture.href = addressOf(video, middle);
    name.href = addressOf(video, 0);
  });
}

/* Marked events, stored in the browser, and the CSV for byov-extract */

class Marks {
  constructor(state) {
    this.state = state;
    this.key = `byov marks of ${data.dataset}`;
    this.marks = this.load();
    byId("mark").addEventListener("click", () => this.add());
    byId("mark-forget").addEventListener("click", () => this.save({}));
    document.addEventListener("keydown", (event) => {
      const busy = event.ctrlKey || event.altKey || event.metaKey || event.target.closest("select");
      if (event.key.toLowerCase() === "m" && !busy) this.add();
    });
    this.show();
  }

  /** Lists of seconds by video name. Other pages may have stored something else under the key. */
  load() {
    try {
      const stored = Object.entries(JSON.parse(localStorage.getItem(this.key)) ?? {});
      return Object.fromEntries(stored.filter(([, times]) => Array.isArray(times) && times.every(Number.isFinite)));
    } catch {
      return {};
    }
  }

  save(marks) {
    this.marks = marks;
    try {
      localStorage.setItem(this.key, JSON.stringify(marks));
    } catch {
      // Without storage, marks last until the page is closed.
    }
    this.show();
  }

  /** Mark the player's frame, in seconds from the first frame of the video. */
  add() {
    const { video, sample } = this.state.now;
    const { name, seconds } = data.videos[video];
    const time = Number((seconds[sample] - seconds[0]).toFixed(3));
    const times = [...new Set([...(this.marks[name] ?? []), time])].sort((one, two) => one - two);
    this.save({ ...this.marks, [name]: times });
  }

  remove(name, time) {
    const { [name]: times, ...others } = this.marks;
    const left = times.filter((each) => each !== time);
    this.save(left.length ? { ...others, [name]: left } : others);
  }

  show() {
    const marked = Object.entries(this.marks);
    const count = marked.reduce((sum, [, times]) => sum + times.length, 0);
    byId("mark-count").textContent = count ? `${count} (videos: ${marked.length})` : "none";
    byId("mark-list").replaceChildren(...marked.flatMap(([name, times]) => times.map((time) => this.item(name, time))));
    const lines = data.rows.map(({ name, before, events, after }) => (
      `${before},${this.marks[name]?.map((time) => time.toFixed(3)).join(";") ?? events},${after}\n`));
    byId("mark-save").href = `data:text/csv;charset=utf-8,${encodeURIComponent(data.header + lines.join(""))}`;
    const counts = new Set(data.rows.map((row) => this.marks[row.name]?.length ?? row.count));
    counts.delete(null);
    byId("mark-warning").hidden = counts.size < 2;
    byId("mark-warning").textContent = `Videos have different numbers of events (${[...counts].join(", ")}); `
      + "byov-extract needs the same number in all.";
  }

  item(name, time) {
    const video = data.videos.findIndex((each) => each.name === name);
    const link = html(video < 0 ? "span" : "a", { textContent: `${name}, ${timeText(time)}` });
    if (video >= 0) {
      const { seconds } = data.videos[video];
      const sample = seconds.findIndex((each) => each - seconds[0] >= time - 5e-4);
      link.href = addressOf(video, Math.max(sample, 0));
    }
    const button = html("button", { type: "button", textContent: "×", ariaLabel: `Delete ${link.textContent}` });
    button.addEventListener("click", () => this.remove(name, time));
    return html("li", {}, link, button);
  }
}

/* A card next to the pointer with one or two frames */

class Card {
  constructor() {
    this.element = byId("card");
    document.addEventListener("pointerdown", (event) => event.target.closest(".cloud, .cells") || this.hide());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.hide());
  }

  /** frames: one or two pairs of video and sample. */
  show(frames, lines, x, y) {
    [byId("card-tile"), byId("card-other")].forEach((tile, index) => {
      tile.hidden = index >= frames.length;
      if (!tile.hidden) showTile(tile, ...frames[index]);
    });
    byId("card-text").textContent = lines.filter(Boolean).join("\n");
    this.element.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const { clientWidth, clientHeight } = document.documentElement;
    const left = x + 16 + width <= clientWidth ? x + 16 : x - 16 - width;
    this.element.style.left = `${scrollX + clamp(left, 4, Math.max(clientWidth - width - 4, 4))}px`;
    this.element.style.top = `${scrollY + clamp(y - height / 2, 4, Math.max(clientHeight - height - 4, 4))}px`;
  }

  hide() {
    this.element.hidden = true;
  }
}

/** Show something below the pointer, and below the finger after a tap. */
function onHover(element, show, hide) {
  element.addEventListener("pointermove", show);
  element.addEventListener("pointerdown", show);
  element.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
}

/* t-SNE maps */

const REACH_PX = 18;
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
const GOLDEN_ANGLE = 137.5;  // separates the hues of consecutive videos

/** A CSS class and optionally a color for a point. */
const COLORINGS = {
  phase: (video, sample) => [phaseOf(video, sample) === null ? "unlabeled" : `p${phaseOf(video, sample) % data.colors}`],
  time: (video, sample) => ["", `color-mix(in oklab, var(--time-start), var(--time-end) ${Math.round(100 * progressOf(video, sample))}%)`],
  video: (video) => ["", `oklch(0.62 0.14 ${(video * GOLDEN_ANGLE) % 360})`],
  view: (video) => [data.videos[video].view === "ego" ? "p0" : "p1"],
};

function describePoint(index) {
  const [video, sample] = data.points[index];
  const time = `frame ${frameOf(video, sample)}, ${timeOf(video, sample)}`;
  return [data.videos[video].name, time, phaseName(phaseOf(video, sample))].filter(Boolean);
}

/** t-SNE maps of the same points. The template draws the points; a point is referred to by its index. */
class Clouds {
  constructor(state, card) {
    Object.assign(this, { state, card, stop: 0 });
    this.maps = [...document.querySelectorAll(".cloud")].map((element, index) => ({
      element,
      positions: data.maps[index],
      points: element.querySelector(".points").children,
      part: (name) => element.querySelector(`.${name}`),
    }));
    this.maps.forEach((map) => this.listen(map));
    byId("color-by").addEventListener("change", () => this.color());
    this.color();
    this.setStop(0);
    state.watch((now) => this.follow(now));
  }

  listen(map) {
    const on = (name, listener) => map.element.addEventListener(name, listener);
    onHover(map.element, (event) => this.pointAt(map, this.nearest(map, event)), () => this.pointAt(map, null));
    // A click would otherwise move the focus, and with it the card, to the point in the tab order.
    on("mousedown", (event) => event.preventDefault());
    on("click", (event) => this.choose(this.nearest(map, event)));
    on("focusin", () => this.pointAt(map, this.stop));
    on("focusout", () => this.pointAt(map, null));
    on("keydown", (event) => {
      if (event.key === "Enter") this.choose(this.stop);
      if (!(event.key in STEPS)) return;
      event.preventDefault();
      this.setStop((this.stop + STEPS[event.key] + data.points.length) % data.points.length);
      map.points[this.stop].focus();
    });
  }

  /** Put one point of each map into the tab order; the arrow keys move to other points. */
  setStop(index) {
    for (const { points } of this.maps) {
      points[this.stop].removeAttribute("tabindex");
      points[index].setAttribute("tabindex", "0");
      points[index].setAttribute("role", "img");
      points[index].setAttribute("aria-label", describePoint(index).join(", "));
    }
    this.stop = index;
  }

  choose(index) {
    if (index === null) return;
    const [video, sample] = data.points[index];
    this.setStop(index);
    this.state.go({ video, sample });
  }

  /** The point nearest to the pointer, if it is close enough. */
  nearest({ element, positions }, { clientX, clientY }) {
    const box = element.getBoundingClientRect();
    const scale = box.width / element.viewBox.baseVal.width;
    const distances = positions.map(([x, y]) => Math.hypot(box.left + x * scale - clientX, box.top + y * scale - clientY));
    const least = Math.min(...distances);
    return least <= REACH_PX ? distances.indexOf(least) : null;
  }

  /** Circle a point in all maps. */
  encircle(name, index) {
    for (const { part, positions } of this.maps) {
      part(name).setAttribute("visibility", index === null ? "hidden" : "visible");
      if (index !== null) part(name).setAttribute("transform", `translate(${positions[index].join(" ")})`);
    }
  }

  /** Show a point in all maps, and its frame next to it in one of them; null hides them. */
  pointAt(map, index) {
    this.encircle("pointed", index);
    if (index === null) {
      this.card.hide();
    } else {
      const { left, right, top, bottom } = map.points[index].getBoundingClientRect();
      this.card.show([data.points[index]], describePoint(index), (left + right) / 2, (top + bottom) / 2);
    }
  }

  color() {
    const by = byId("color-by").value;
    byId("phase-key").hidden = by !== (data.phases.length ? "phase" : "time");
    data.points.forEach(([video, sample], index) => {
      const [name, color = ""] = COLORINGS[by](video, sample);
      for (const { points } of this.maps) {
        points[index].setAttribute("class", name);
        points[index].style.color = color;
      }
    });
  }

  /** Ring the point nearest to the player's frame. */
  follow({ video, sample }) {
    const own = data.points.flatMap(([of], index) => (of === video ? [index] : []));
    const gap = (index) => Math.abs(frameOf(video, data.points[index][1]) - frameOf(video, sample));
    this.encircle("ring", own.reduce((best, index) => (gap(index) < gap(best) ? index : best)));
  }
}

/* Distance matrices */

const SHADES = new Uint32Array(decodeBytes(data.shades).buffer);  // colors of canvas pixels, from near to far

class Matrix {
  constructor(figure, run, state, card) {
    Object.assign(this, { figure, run, state, card });
    this.canvas = figure.querySelector("canvas");
    this.overlay = figure.querySelector("svg");
    this.cells = figure.querySelector(".cells");
    this.here = svg("g", { class: "here" });
    onHover(this.cells, (event) => this.point(event), () => card.hide());
    this.cells.addEventListener("click", (event) => state.go({ sample: this.cell(event)[0] }));
    state.watch((now) => this.show(now));
  }

  show({ video, sample, other }) {
    const pair = this.run.compare(video, other);
    if (this.pair !== pair) this.draw(pair, video, other);
    const x = pair.nearest[sample] + 0.5;
    this.here.replaceChildren(
      svg("line", { y1: sample + 0.5, y2: sample + 0.5, x2: pair.columns }),
      svg("line", { x1: x, x2: x, y2: pair.rows }),
    );
  }

  draw(pair, video, other) {
    this.pair = pair;
    this.paint(pair);
    const names = [video, other].map((index) => `${data.videos[index].name}, to ${timeOf(index, lastSample(index))}`);
    this.figure.querySelector(".down").textContent = names[0];
    this.figure.querySelector(".across").textContent = names[1];
    this.canvas.setAttribute("aria-label", `Distances between ${names[0]} (rows) and ${names[1]} (columns)`);
    const tau = this.run.taus[video][other];
    this.figure.querySelector(".tau").textContent = tau === null ? "no tau" : `tau ${tau.toFixed(3)}`;
    this.overlay.setAttribute("viewBox", `0 0 ${pair.columns} ${pair.rows}`);
    const path = pair.path.map(([row, column]) => `${column + 0.5},${row + 0.5}`).join(" ");
    const clock = pair.nearest.map((_, row) => `${clockSample(video, row, other) + 0.5},${row + 0.5}`).join(" ");
    // Lines of length zero with round caps are dots, however the drawing is stretched.
    const dots = pair.nearest.map((column, row) => `M${column + 0.5} ${row + 0.5}h0`).join("");
    this.overlay.replaceChildren(
      ...data.videos[video].boundaries.map((y) => svg("line", { class: "boundary", y1: y, y2: y, x2: pair.columns })),
      ...data.videos[other].boundaries.map((x) => svg("line", { class: "boundary", x1: x, x2: x, y2: pair.rows })),
      svg("polyline", { class: "clock", points: clock }),
      svg("polyline", { class: "path", points: path }),
      svg("path", { class: "nearest", d: dots }),
      this.here,
    );
  }

  paint({ rows, columns, distances }) {
    const [low, high] = [distances.reduce((a, b) => Math.min(a, b)), distances.reduce((a, b) => Math.max(a, b))];
    Object.assign(this.canvas, { width: columns, height: rows });
    const drawing = this.canvas.getContext("2d");
    const image = drawing.createImageData(columns, rows);
    const pixels = new Uint32Array(image.data.buffer);
    const scale = (SHADES.length - 1) / Math.max(high - low, 1e-12);
    distances.forEach((distance, at) => {
      pixels[at] = SHADES[Math.round((distance - low) * scale)];
    });
    drawing.putImageData(image, 0, 0);
  }

  /** Row and column below the pointer. */
  cell({ clientX, clientY }) {
    const box = this.cells.getBoundingClientRect();
    const at = (fraction, count) => clamp(Math.floor(fraction * count), 0, count - 1);
    return [at((clientY - box.top) / box.height, this.pair.rows), at((clientX - box.left) / box.width, this.pair.columns)];
  }

  point(event) {
    const { video, other } = this.state.now;
    const [row, column] = this.cell(event);
    const distance = this.pair.distances[row * this.pair.columns + column];
    const lines = [`${data.videos[video].name}: ${sampleText(video, row)}`,
      `${data.videos[other].name}: ${sampleText(other, column)}`, `distance ${distance.toPrecision(3)}`];
    this.card.show([[video, row], [other, column]], lines, event.clientX, event.clientY);
  }
}

/* Start the parts that are on the page */

document.querySelectorAll(".scripted").forEach((element) => element.classList.remove("scripted"));
if (data.videos.length) {
  const state = new State();
  const card = new Card();
  const runs = data.runs.map((run) => new Run(run));
  if (byId("stage")) {
    new Player(state, runs);
    new Marks(state);
  }
  if (data.maps.length) new Clouds(state, card);
  runs.forEach((run, index) => new Matrix(byId(`matrix-${index}`), run, state, card));
  if (byId("examples")) startStrips(state, runs);
  showFailures();
  showVideoTable();
}
