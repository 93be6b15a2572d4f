/* Interactive parts of a report. A frame is a [video, frame number] pair. Embeddings exist for the samples of each video, which
   are some or all of its frames. */

const data = JSON.parse(byId("data").textContent);
for (const video of data.videos) video.clip = video.mp4 && clipAddress(video.mp4);
const argmin = (values) => values.reduce((best, value, at) => (value < values[best] ? at : best), 0);

/* Frames */

const phaseOf = (video, frame) => data.videos[video].phases.find(([first, end]) => first <= frame && frame < end)?.[2] ?? null;
const phaseName = (video, frame) => data.phases[phaseOf(video, frame)] ?? "";
const frameText = (video, frame) => `${data.videos[video].seconds[frame].toFixed(2)} s, frame ${frame}`;
const showFrame = (tile, video, frame) => showClipFrame(tile, data.videos[video], frame);

/** Return the sample nearest to a frame. */
const sampleAt = (video, frame) => argmin(data.videos[video].samples.map((each) => Math.abs(each - frame)));

/** Return the frame of another video at the same relative time. */
function clockFrame(video, frame, other) {
  const progress = frame / Math.max(data.videos[video].count - 1, 1);
  return Math.round(progress * (data.videos[other].count - 1));
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
    this.vectors = data.videos.map(({ samples }) => samples.map(() => values.subarray(end, end += width)));
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
      const columns = distances.map(() => []);
      for (const [row, column] of path) columns[row].push(column);
      const aligned = columns.map((steps) => steps[(steps.length - 1) >> 1]);
      this.pair = { key, distances, nearest: distances.map(argmin), aligned, path };
    }
    return this.pair;
  }

  /** Return the frame of another video that belongs to a frame: the nearest one, or the one on the warp path. */
  match(video, frame, other, mode) {
    const { nearest, aligned } = this.compare(video, other);
    return data.videos[other].samples[(mode === "path" ? aligned : nearest)[sampleAt(video, frame)]];
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

/* State of the player. It is part of the page address, so that it can be shared, and of the history, so that the back button
   restores it. */

const SETTLED_MS = 300;  // browsers reject frequent address changes
const watchers = [];
let now = data.start;
let playback = null;
let settling = null;

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
  const { stride } = data.videos[next.video];
  next.frame = stride * clamp(Math.round(next.frame / stride), 0, lastStep(next.video));
  now = next;
  watchers.forEach((watcher) => watcher());
}

/** Return the number of steps from the first to the last frame in the clip of a video. */
const lastStep = (video) => Math.floor((data.videos[video].count - 1) / data.videos[video].stride);

/** Change the state and add a history entry. */
function go(change) {
  playback?.pause();
  setState(change);
  if (location.hash !== currentAddress()) history.pushState(now, "", currentAddress());
}

/** Show a frame that was chosen elsewhere on the page, and bring the player into view. */
function reveal(change) {
  go(change);
  byId("player").scrollIntoView();
}

/** Change the state while playing or dragging the slider, without a history entry. */
function pass(change) {
  setState(change);
  clearTimeout(settling);
  settling = setTimeout(() => history.replaceState(now, "", currentAddress()), SETTLED_MS);
}

function addressOf(video, frame, other = null) {
  const encoded = (index) => encodeURIComponent(data.videos[index].name).replaceAll("%2F", "/");
  return `#video=${encoded(video)}&frame=${frame}${other === null ? "" : `&with=${encoded(other)}`}`;
}

const currentAddress = () => addressOf(now.video, now.frame, now.other) + (now.mode === "path" ? "" : "&play=nearest");

/** Read the state from the address. Return whether it has a video; links to sections, for example, have none. */
function readAddress() {
  const read = Object.fromEntries(new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B")));
  const find = (name) => data.videos.findIndex((video) => video.name === name);
  const video = find(read.video);
  if (video < 0) return false;
  const partner = "with" in read ? { other: find(read.with) } : {};
  setState({ video, frame: Number(read.frame) || 0, ...partner, mode: read.play === "nearest" ? "nearest" : "path" });
  return true;
}

function startHistory() {
  history.replaceState(now, "");
  addEventListener("popstate", ({ state }) => {
    playback?.pause();
    if (state) return setState(state);
    // A link was followed. Entries of links to sections keep the state, too.
    if (readAddress()) byId("player").scrollIntoView();
    return history.replaceState(now, "");
  });
}

/* Player */

function showSide(id, query, frame) {
  const [video, number] = frame;
  const part = (name) => byId(`${id}-${name}`);
  showFrame(part("tile"), video, number);
  const bar = part("line");
  if (bar.dataset.video !== `${video}`) {
    bar.dataset.video = video;
    const phases = all("#video-table .timeline")[video]?.cloneNode(true).children ?? [];
    bar.replaceChildren(...phases, svg("line", { class: "marker", y2: 10 }));
  }
  placeMarker(bar.lastChild, video, number);
  part("time").textContent = frameText(video, number);
  part("phase").textContent = phaseName(video, number);
  Object.assign(part("verdict"), verdict(query, frame));
}

/** Move the marker of a bar or curve, whose width is 100, to a frame. */
function placeMarker(marker, video, frame) {
  const x = (100 * (frame + 0.5)) / data.videos[video].count;
  marker.setAttribute("x1", x);
  marker.setAttribute("x2", x);
}

function startPlayer(runs) {
  const scrub = byId("scrub");
  const step = (by) => pass({ frame: now.frame + by * data.videos[now.video].stride });

  /** Show the next frame, or the first after the last, and return its duration in milliseconds. */
  function advance() {
    const { seconds, stride } = data.videos[now.video];
    if (now.frame + stride < seconds.length) step(1);
    else pass({ frame: 0 });
    const next = seconds[now.frame + stride] ?? seconds.at(-1) + 1;
    return 1000 * clamp(next - seconds[now.frame], 0.01, 2);
  }

  playback = new Playback(byId("play"), all("#stage .tile"), advance);
  const choices = {
    video: (value) => ({ video: Number(value), frame: 0 }),
    other: (value) => ({ other: Number(value) }),
    mode: (value) => ({ mode: value }),
  };
  for (const [key, change] of Object.entries(choices)) {
    byId(`choose-${key}`).addEventListener("change", (event) => go(change(event.target.value)));
  }
  scrub.addEventListener("input", () => {
    playback.pause();
    pass({ frame: Number(scrub.value) });
  });
  // Left and right move by a frame, also after a video was chosen; the slider and tables use these keys themselves.
  document.addEventListener("keydown", (event) => {
    const isIn = (selector) => event.target.closest(selector) !== null;
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key in steps && !isIn("[type=range], .scroll")) {
      playback.pause();
      step(steps[event.key]);
    } else if (event.key === " " && !isIn("button, a, summary, select, [type=checkbox]")) playback.toggle();
    else if (event.key.toLowerCase() === "m" && !isIn("select")) byId("mark").click();
    else return;
    event.preventDefault();
  });
  watch(() => {
    const { video, frame, other, mode } = now;
    const query = [video, frame];
    showSide("query", query, query);
    runs.forEach((run, index) => {
      byId(`run-${index}-title`).textContent = `${mode === "path" ? "Aligned by" : "Nearest in"} ${run.name}`;
      showSide(`run-${index}`, query, [other, run.match(video, frame, other, mode)]);
    });
    showSide("clock", query, [other, clockFrame(video, frame, other)]);
    for (const key of Object.keys(choices)) byId(`choose-${key}`).value = now[key];
    const { stride } = data.videos[video];
    Object.assign(scrub, { max: stride * lastStep(video), step: stride, value: frame });
    scrub.setAttribute("aria-valuetext", frameText(video, frame));
    all("#video-table tbody tr").forEach((row, index) => row.classList.toggle("own", index === video));
  });
  // Play the opening pair while it is in view, unless the address names a frame or the reader prefers less motion.
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches || location.hash.startsWith("#video=");
  if (!isStill) playback.play();
  new IntersectionObserver(([{ isIntersecting }]) => isIntersecting || playback.pause()).observe(byId("stage"));
}

/* Bars of phases and curves of predicted progress */

document.addEventListener("click", ({ target, clientX }) => {
  const bar = target.closest(".timeline, .curve");
  if (!bar) return;
  const [box, video] = [bar.getBoundingClientRect(), Number(bar.dataset.video)];
  const frame = Math.floor(((clientX - box.left) / box.width) * data.videos[video].count);
  (bar.closest("#player") ? go : reveal)({ video, frame });
});

function startCurves() {
  const curves = all(".curve");
  watch(() => curves.forEach((curve) => {
    const marker = curve.lastElementChild;
    const isShown = Number(curve.dataset.video) === now.video;
    marker.toggleAttribute("hidden", !isShown);
    if (isShown) placeMarker(marker, now.video, now.frame);
  }));
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
      const href = video < 0 ? "#marks" : addressOf(video, frame);
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
    playback.pause();
    const [{ name }, frame] = [data.videos[now.video], now.frame];
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
  for (const name of ["pointerleave", "click"]) element.addEventListener(name, () => { card.hidden = true; });
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
      return frame && { frames: [frame], lines: [data.videos[frame[0]].name, frameText(...frame), phaseName(...frame)] };
    });
    element.addEventListener("click", (event) => {
      const found = nearest(event);
      if (found) reveal({ video: found[0], frame: found[1] });
    });
  });
  // Draw a ring around the point nearest to the player's frame.
  watch(() => {
    const index = argmin(data.points.map(([video, frame]) => (video === now.video ? Math.abs(frame - now.frame) : Infinity)));
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
    const low = values[argmin(values)];
    const high = values.reduce((one, two) => Math.max(one, two));
    const scale = (SHADES.length - 1) / Math.max(high - low, 1e-12);
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
    figure.querySelector(".tau").textContent = tau === null ? "tau undefined" : `tau ${tau.toFixed(3)} (clock: 1)`;
    overlay.setAttribute("viewBox", `0 0 ${columns} ${rows}`);
    const points = (steps) => steps.map(([row, column]) => `${column + 0.5},${row + 0.5}`).join(" ");
    const clock = data.videos[video].samples.map((frame, row) => [row, sampleAt(other, clockFrame(video, frame, other))]);
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

  /** Return the frames of the row and the column under the pointer, and their distance. */
  function cellAt({ clientX, clientY }) {
    const box = cells.getBoundingClientRect();
    const at = (fraction, count) => clamp(Math.floor(fraction * count), 0, count - 1);
    const row = at((clientY - box.top) / box.height, canvas.height);
    const column = at((clientX - box.left) / box.width, canvas.width);
    const frames = [[now.video, data.videos[now.video].samples[row]], [now.other, data.videos[now.other].samples[column]]];
    return { frames, distance: pair.distances[row][column] };
  }

  showCard(cells, (event) => {
    const { frames, distance } = cellAt(event);
    const names = frames.map((frame) => `${data.videos[frame[0]].name}: ${frameText(...frame)}`);
    return { frames, lines: [...names, `distance ${distance.toPrecision(3)}`] };
  });
  cells.addEventListener("click", (event) => reveal({ frame: cellAt(event).frames[0][1] }));
  watch(() => {
    const shown = run.compare(now.video, now.other);
    if (pair !== shown) {
      pair = shown;
      draw(pair);
    }
    const sample = sampleAt(now.video, now.frame);
    const [x, y] = [pair.nearest[sample] + 0.5, sample + 0.5];
    here.replaceChildren(line("", { y1: y, y2: y, x2: canvas.width }), line("", { x1: x, x2: x, y2: canvas.height }));
  });
}

/* Initialize the parts that the page contains */

all(".scripted").forEach((element) => element.classList.remove("scripted"));
setState({});
readAddress();
startHistory();
const runs = data.runs.map((run) => new Run(run));
if (byId("stage")) {
  startPlayer(runs);
  startMarks();
}
startCurves();
if (data.maps.length) startMaps();
runs.forEach((run, index) => startMatrix(run, byId(`matrix-${index}`)));
