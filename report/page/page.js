"use strict";
/* Interactive parts of a report. Each video has samples, which are frames included in the page; a sample is an index into
   the video's `frames`, and a frame is a [video, sample] pair. All text is inserted as text, never as markup. */

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const argmin = (values) => values.indexOf(Math.min(...values));
const decodeBytes = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));

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

/* Frames */

const frameOf = (video, sample) => data.videos[video].frames[sample];
const phaseOf = (video, sample) => data.videos[video].phases[sample];
const phaseName = (video, sample) => data.phases[phaseOf(video, sample)] ?? "";
const sampleText = (video, sample) => `${data.videos[video].seconds[sample].toFixed(2)} s, frame ${frameOf(video, sample)}`;
const lastSample = (video) => data.videos[video].frames.length - 1;

/** Return the sample nearest to a frame number, which may be fractional. */
const sampleAt = (video, frame) => argmin(data.videos[video].frames.map((each) => Math.abs(each - frame)));

/** Return the sample of another video at the same relative time. */
function clockSample(video, sample, other) {
  const progress = frameOf(video, sample) / Math.max(data.videos[video].count - 1, 1);
  return sampleAt(other, progress * (data.videos[other].count - 1));
}

function showFrame(image, video, sample) {
  const picture = data.videos[video].pictures[sample];
  image.className = picture ? "tile" : "tile missing";
  image.decoding = "sync";  // avoids flicker while playing
  image.alt = `${data.videos[video].name}, frame ${frameOf(video, sample)}${picture ? "" : ": no picture"}`;
  if (picture) image.src = `data:image/jpeg;base64,${picture}`;
}

/** Return the text and class that show whether a frame has the phase of the query, if both are labeled. */
function verdict(query, frame) {
  const phases = [phaseOf(...query), phaseOf(...frame)];
  if (query === frame || phases.includes(null)) return { textContent: "", className: "plain" };
  if (phases[0] === phases[1]) return { textContent: "✓ same phase", className: "right" };
  return { textContent: "✗ different phase", className: "wrong" };
}

/* Embeddings */

class Run {
  constructor({ name, width, step, numbers, taus }) {
    Object.assign(this, { name, step, taus, pair: null });
    const values = new Int8Array(decodeBytes(numbers).buffer);
    let end = 0;
    this.vectors = data.videos.map(({ frames }) => frames.map(() => values.subarray(end, end += width)));
  }

  /** Return the distances from a sample to all samples of another video. */
  distances(video, sample, other) {
    const query = this.vectors[video][sample];
    return this.vectors[other].map((vector) => {
      let sum = 0;
      for (let at = 0; at < query.length; at += 1) sum += (query[at] - vector[at]) ** 2;
      return this.step * Math.sqrt(sum);
    });
  }

  /** Return all distances between two videos, the nearest and the aligned column of each row, and the warp path. */
  compare(video, other) {
    const key = `${video} ${other}`;
    if (this.pair?.key !== key) {
      const distances = this.vectors[video].map((_, sample) => this.distances(video, sample, other));
      const path = warpPath(distances);
      const aligned = distances.map((_, row) => {
        const steps = path.filter(([each]) => each === row);
        return steps[(steps.length - 1) >> 1][1];
      });
      this.pair = { key, distances, nearest: distances.map(argmin), aligned, path };
    }
    return this.pair;
  }
}

/** Compute the path of dynamic time warping, as in byov-align, for any two videos that the reader compares. */
function warpPath(distances) {
  const costs = distances.map(() => []);
  const cost = ([row, column]) => costs[row]?.[column] ?? Infinity;
  const before = ([row, column]) => [[row - 1, column - 1], [row - 1, column], [row, column - 1]]
    .reduce((best, cell) => (cost(cell) < cost(best) ? cell : best));
  distances.forEach((ofRow, row) => ofRow.forEach((distance, column) => {
    costs[row].push(distance + (row || column ? cost(before([row, column])) : 0));
  }));
  const path = [[distances.length - 1, distances[0].length - 1]];
  while (path[0][0] || path[0][1]) path.unshift(before(path[0]));
  return path;
}

/* State of the player. It is part of the page address, so that it can be shared and the back button works. */

const SETTLED_MS = 300;  // browsers reject frequent address changes
const watchers = [];
let now = { ...data.start, mode: "nearest" };
let settled = null;

function watch(watcher) {
  watchers.push(watcher);
  watcher();
}

/** Change the state. A new video is compared with one of the other view if possible, preferably the one shown before. */
function setState(change) {
  const next = { ...now, ...change };
  const others = [next.other, now.video, ...data.videos.keys()].filter((index) => index in data.videos && index !== next.video);
  const across = others.find((index) => data.videos[index].view !== data.videos[next.video].view);
  const isChosen = others[0] === next.other && ("other" in change || next.video === now.video);
  next.other = (isChosen ? next.other : across ?? others[0]) ?? next.video;
  next.sample = clamp(next.sample, 0, lastSample(next.video));
  now = next;
  watchers.forEach((watcher) => watcher());
}

/** Change the state and add a history entry. */
function go(change) {
  setState(change);
  if (location.hash !== currentAddress()) history.pushState(null, "", currentAddress());
}

/** Change the state while playing or dragging the slider, without a history entry. */
function pass(change) {
  setState(change);
  clearTimeout(settled);
  settled = setTimeout(() => history.replaceState(null, "", currentAddress()), SETTLED_MS);
}

function addressOf(video, sample, other = null) {
  const encoded = (index) => encodeURIComponent(data.videos[index].name).replaceAll("%2F", "/");
  return `#video=${encoded(video)}&frame=${frameOf(video, sample)}${other === null ? "" : `&with=${encoded(other)}`}`;
}

const currentAddress = () => addressOf(now.video, now.sample, now.other) + (now.mode === "path" ? "&play=path" : "");

/** Read the state from the address. Addresses without a video, such as links to sections, change nothing. */
function readAddress() {
  const read = Object.fromEntries(new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B")));
  const find = (name) => data.videos.findIndex((video) => video.name === name);
  const video = find(read.video);
  if (video < 0) return;
  const partner = "with" in read ? { other: find(read.with) } : {};
  const mode = read.play === "path" ? "path" : now.mode;
  setState({ video, sample: sampleAt(video, Number(read.frame) || 0), ...partner, mode });
}

/* Player */

function showSide(id, query, frame) {
  const [video, sample] = frame;
  const part = (name) => byId(`${id}-${name}`);
  showFrame(part("tile"), video, sample);
  const x = (100 * (frameOf(video, sample) + 0.5)) / data.videos[video].count;
  const bar = all("#video-table .timeline")[video]?.cloneNode(true).children ?? [];
  part("line").replaceChildren(...bar, svg("line", { class: "marker", x1: x, x2: x, y2: 10 }));
  part("line").dataset.video = video;
  part("time").textContent = sampleText(video, sample);
  part("phase").textContent = phaseName(video, sample);
  Object.assign(part("verdict"), verdict(query, frame));
}

function startPlayer(runs) {
  const [scrub, button] = [byId("scrub"), byId("play")];
  let timer = null;
  const step = (by) => pass({ sample: clamp(now.sample + by, 0, lastSample(now.video)) });

  function pause() {
    clearTimeout(timer);
    timer = null;
    button.textContent = "Play";
  }

  /** Schedule the next step, so that the video plays in its original duration. */
  function wait() {
    const { seconds } = data.videos[now.video];
    const last = lastSample(now.video);
    timer = setTimeout(() => {
      step(1);
      if (now.sample >= last) pause();
      else wait();
    }, 1000 * clamp((seconds.at(-1) - seconds[0]) / last, 0.02, 2));
  }

  function press() {
    if (timer !== null) return pause();
    if (now.sample >= lastSample(now.video)) pass({ sample: 0 });
    button.textContent = "Pause";
    return wait();
  }

  const choices = {
    video: (value) => ({ video: Number(value), sample: 0 }),
    other: (value) => ({ other: Number(value) }),
    mode: (value) => ({ mode: value }),
  };
  for (const [key, change] of Object.entries(choices)) {
    byId(`choose-${key}`).addEventListener("change", (event) => {
      pause();
      go(change(event.target.value));
    });
  }
  scrub.addEventListener("input", () => pass({ sample: Number(scrub.value) }));
  button.addEventListener("click", press);
  // Arrow keys step and Space plays, unless the focused element uses these keys itself.
  document.addEventListener("keydown", (event) => {
    const isIn = (selector) => event.target.closest(selector) !== null;
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    if (event.ctrlKey || event.altKey || event.metaKey || isIn("select")) return;
    if (event.key.toLowerCase() === "m") byId("mark").click();
    else if (isIn("input, .scroll")) return;
    else if (event.key in steps) step(steps[event.key]);
    else if (event.key === " " && !isIn("button, a, summary")) press();
    else return;
    event.preventDefault();
  });
  watch(() => {
    const { video, sample, other, mode } = now;
    const query = [video, sample];
    showSide("query", query, query);
    runs.forEach((run, index) => {
      const found = run.compare(video, other)[mode === "path" ? "aligned" : "nearest"][sample];
      byId(`run-${index}-title`).textContent = `${mode === "path" ? "Aligned" : "Nearest"} (${run.name})`;
      showSide(`run-${index}`, query, [other, found]);
    });
    showSide("clock", query, [other, clockSample(video, sample, other)]);
    for (const key of Object.keys(choices)) byId(`choose-${key}`).value = now[key];
    Object.assign(scrub, { max: lastSample(video), value: sample });
    scrub.setAttribute("aria-valuetext", sampleText(video, sample));
    all("#video-table tbody tr").forEach((row, index) => row.classList.toggle("own", index === video));
  });
}

/** Select a frame when a timeline is clicked. */
document.addEventListener("click", ({ target, clientX }) => {
  const bar = target.closest(".timeline");
  if (!bar) return;
  const [box, video] = [bar.getBoundingClientRect(), Number(bar.dataset.video)];
  const fraction = (clientX - box.left) / box.width;
  go({ video, sample: sampleAt(video, fraction * data.videos[video].count - 0.5) });
});

/* Stills: linked frames with captions */

const RETRIEVED = 5;

/** Return a frame with a caption and a link that shows the query in the player, compared with the video `other`. */
function still(frame, query, other, title, kind = null) {
  const { textContent, className } = verdict(query, frame);
  const tile = html("img");
  showFrame(tile, ...frame);
  const lines = [data.videos[frame[0]].name, sampleText(...frame), phaseName(...frame)];
  const texts = lines.filter(Boolean).map((line) => html("span", { textContent: line }));
  const caption = html("figcaption", {}, html("b", { textContent: title }), ...texts, html("span", { textContent, className }));
  const link = html("a", { className: "window", href: addressOf(...query, other) }, tile);
  return html("figure", { className: `still ${kind ?? className}` }, link, caption);
}

function strip(query, found) {
  const stills = found.map((frame, rank) => still(frame, query, frame[0], `Nearest ${rank + 1}`));
  return html("div", { className: "strip" }, still(query, query, null, "Query", "query"), ...stills);
}

/** Return the nearest frame in each video of the other view, nearest first. */
function retrieve(run, video, sample) {
  const others = [...data.videos.keys()].filter((other) => data.videos[other].view !== data.videos[video].view);
  const found = others.map((other) => {
    const distances = run.distances(video, sample, other);
    return { frame: [other, argmin(distances)], distance: Math.min(...distances) };
  });
  found.sort((one, two) => one.distance - two.distance);
  return found.slice(0, RETRIEVED).map(({ frame }) => frame);
}

function startStrips(runs) {
  byId("examples").append(...data.strips.map(([query, ...found]) => strip(query, found)));
  watch(() => byId("live-strips").replaceChildren(...runs.flatMap((run) => [
    html("h3", { textContent: `Nearest to the player's frame (${run.name})` }),
    strip([now.video, now.sample], retrieve(run, now.video, now.sample)),
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
  all("#video-table tbody th").forEach((cell, video) => {
    const [picture, name] = cell.querySelectorAll("a");
    const middle = (lastSample(video) + 1) >> 1;
    showFrame(picture.firstChild, video, middle);
    picture.href = addressOf(video, middle);
    name.href = addressOf(video, 0);
  });
}

/* Marked events (video name → frame numbers), stored in the browser, and the CSV for byov-extract */

function startMarks() {
  const key = `byov marks of ${data.dataset}`;
  let storage = {};
  try {
    storage = localStorage;
  } catch {
    // Without storage, marks last until the page is closed.
  }
  let marks = JSON.parse(storage[key] ?? "{}");

  function show() {
    const marked = Object.entries(marks).flatMap(([name, frames]) => frames.map((frame) => ({ name, frame })));
    byId("mark-count").textContent = marked.length || "none";
    byId("mark-list").replaceChildren(...marked.map(({ name, frame }) => {
      const video = data.videos.findIndex((each) => each.name === name);
      const href = video < 0 ? "#marks" : addressOf(video, sampleAt(video, frame));
      return html("li", {}, html("a", { href, textContent: `${name}, frame ${frame}` }));
    }));
    const lines = data.rows.map(({ name, before, events }) => (
      `${before},${marks[name]?.map((frame) => `${frame}f`).join(";") ?? events}\n`));
    byId("mark-save").href = `data:text/csv;charset=utf-8,${encodeURIComponent(data.header + lines.join(""))}`;
    const counts = new Set(data.rows.map((row) => marks[row.name]?.length ?? row.count));
    counts.delete(null);
    byId("mark-warning").hidden = counts.size < 2;
    byId("mark-warning").textContent = `Videos have different numbers of events (${[...counts].join(", ")}), `
      + "but byov-extract needs the same number in all of them.";
  }

  function save(changed) {
    marks = changed;
    storage[key] = JSON.stringify(marks);
    show();
  }

  /** Mark the player's frame, or delete its mark. */
  function toggle() {
    const [{ name }, frame] = [data.videos[now.video], frameOf(now.video, now.sample)];
    const { [name]: before = [], ...others } = marks;
    const frames = before.includes(frame) ? before.filter((each) => each !== frame) : [...before, frame];
    save(frames.length ? { ...others, [name]: frames.sort((one, two) => one - two) } : others);
  }

  byId("mark").addEventListener("click", toggle);
  byId("mark-forget").addEventListener("click", () => save({}));
  show();
}

/* Card with one or two frames next to the pointer */

/** Show a card over an element. `describe(event)` returns its frames and lines of text, or null for no card. */
function showCard(element, describe) {
  const card = byId("card");
  const show = (event) => {
    const found = describe(event);
    card.hidden = found === null;
    if (found === null) return;
    [byId("card-tile"), byId("card-other")].forEach((tile, index) => {
      tile.hidden = index >= found.frames.length;
      if (!tile.hidden) showFrame(tile, ...found.frames[index]);
    });
    byId("card-text").textContent = found.lines.filter(Boolean).join("\n");
    const { offsetWidth: width, offsetHeight: height } = card;
    const { clientWidth, clientHeight } = document.documentElement;
    const left = event.clientX + 16 + width <= clientWidth ? event.clientX + 16 : event.clientX - 16 - width;
    card.style.left = `${scrollX + clamp(left, 4, Math.max(clientWidth - width - 4, 4))}px`;
    card.style.top = `${scrollY + clamp(event.clientY - height / 2, 4, Math.max(clientHeight - height - 4, 4))}px`;
  };
  for (const name of ["pointermove", "pointerdown"]) element.addEventListener(name, show);
  element.addEventListener("pointerleave", () => { card.hidden = true; });
}

/* t-SNE maps. The template draws their points. */

const REACH_PX = 18;

function startMaps() {
  all(".cloud").forEach((element, map) => {
    /** Return the point nearest to the pointer, or null if it is too far away. */
    const nearest = ({ clientX, clientY }) => {
      const box = element.getBoundingClientRect();
      const scale = box.width / element.viewBox.baseVal.width;
      const distances = data.maps[map].map(([x, y]) => Math.hypot(box.left + x * scale - clientX, box.top + y * scale - clientY));
      return Math.min(...distances) <= REACH_PX ? data.points[argmin(distances)] : null;
    };
    showCard(element, (event) => {
      const frame = nearest(event);
      return frame && { frames: [frame], lines: [data.videos[frame[0]].name, sampleText(...frame), phaseName(...frame)] };
    });
    element.addEventListener("click", (event) => {
      const frame = nearest(event);
      if (frame) go({ video: frame[0], sample: frame[1] });
    });
  });
  // Draw a ring around the point nearest to the player's frame.
  watch(() => {
    const index = argmin(data.points.map(([video, sample]) => (
      video === now.video ? Math.abs(frameOf(video, sample) - frameOf(now.video, now.sample)) : Infinity)));
    all(".cloud .ring").forEach((circle, map) => (
      circle.setAttribute("transform", `translate(${data.maps[map][index].join(" ")})`)));
  });
}

/* Distance matrices */

const SHADES = new Uint32Array(decodeBytes(data.shades).buffer);  // colors of canvas pixels, from near to far

function startMatrix(run, figure) {
  const [canvas, overlay, cells] = ["canvas", "svg", ".cells"].map((selector) => figure.querySelector(selector));
  const here = svg("g", { class: "here" });
  const line = (kind, attributes) => svg("line", { class: kind, ...attributes });
  let pair = null;

  function draw({ distances, path, nearest }) {
    const { video, other } = now;
    const [rows, columns] = [distances.length, distances[0].length];
    const values = distances.flat();
    const low = Math.min(...values);
    const scale = (SHADES.length - 1) / Math.max(Math.max(...values) - low, 1e-12);
    Object.assign(canvas, { width: columns, height: rows });
    const drawing = canvas.getContext("2d");
    const image = drawing.createImageData(columns, rows);
    new Uint32Array(image.data.buffer).set(values.map((value) => SHADES[Math.round((value - low) * scale)]));
    drawing.putImageData(image, 0, 0);
    const names = [video, other].map((index) => `${data.videos[index].name} (up to ${data.videos[index].seconds.at(-1).toFixed(2)} s)`);
    figure.querySelector(".down").textContent = names[0];
    figure.querySelector(".across").textContent = names[1];
    canvas.setAttribute("aria-label", `Distances between ${names[0]} (rows) and ${names[1]} (columns)`);
    const tau = run.taus[video][other];
    figure.querySelector(".tau").textContent = tau === null ? "tau undefined" : `tau ${tau.toFixed(3)}`;
    overlay.setAttribute("viewBox", `0 0 ${columns} ${rows}`);
    const points = (steps) => steps.map(([row, column]) => `${column + 0.5},${row + 0.5}`).join(" ");
    const clock = nearest.map((_, row) => [row, clockSample(video, row, other)]);
    // Lines of length zero with round caps are dots, no matter how the drawing is stretched.
    const dots = nearest.map((column, row) => `M${column + 0.5} ${row + 0.5}h0`).join("");
    overlay.replaceChildren(
      ...data.videos[video].boundaries.map((y) => line("boundary", { y1: y, y2: y, x2: columns })),
      ...data.videos[other].boundaries.map((x) => line("boundary", { x1: x, x2: x, y2: rows })),
      svg("polyline", { class: "clock", points: points(clock) }),
      svg("polyline", { class: "path", points: points(path) }),
      svg("path", { class: "nearest", d: dots }),
      here,
    );
  }

  /** Return the row and column under the pointer. */
  function cellAt({ clientX, clientY }) {
    const box = cells.getBoundingClientRect();
    const at = (fraction, count) => clamp(Math.floor(fraction * count), 0, count - 1);
    return [at((clientY - box.top) / box.height, canvas.height), at((clientX - box.left) / box.width, canvas.width)];
  }

  showCard(cells, (event) => {
    const [row, column] = cellAt(event);
    const frames = [[now.video, row], [now.other, column]];
    const names = frames.map((frame) => `${data.videos[frame[0]].name}: ${sampleText(...frame)}`);
    return { frames, lines: [...names, `distance ${pair.distances[row][column].toPrecision(3)}`] };
  });
  cells.addEventListener("click", (event) => go({ sample: cellAt(event)[0] }));
  watch(() => {
    const shown = run.compare(now.video, now.other);
    if (pair !== shown) {
      pair = shown;
      draw(pair);
    }
    const [x, y] = [pair.nearest[now.sample] + 0.5, now.sample + 0.5];
    here.replaceChildren(line("", { y1: y, y2: y, x2: canvas.width }), line("", { x1: x, x2: x, y2: canvas.height }));
  });
}

/* Initialize the parts that the page contains */

all(".scripted").forEach((element) => element.classList.remove("scripted"));
setState({});
readAddress();
addEventListener("popstate", readAddress);
const runs = data.runs.map((run) => new Run(run));
if (byId("stage")) {
  startPlayer(runs);
  startMarks();
}
if (data.maps.length) startMaps();
runs.forEach((run, index) => startMatrix(run, byId(`matrix-${index}`)));
if (byId("examples")) startStrips(runs);
showFailures();
showVideoTable();
