/* Check and correct annotations. A mark has the events of a video, as frames or null, and whether a person has checked them. */

const data = JSON.parse(byId("data").textContent);
const { videos } = data;
const NEIGHBORS = 3;  // frames shown on each side of the selected one
const PICTURE_WIDTH = 160;
const GRAB_PX = 8;
const PHASE_COLORS = 8;  // as in base.css
const isPlaced = (event) => event !== null;
const percent = (fraction) => `${Math.round(100 * fraction)}%`;
const timeText = (video, frame) => `${videos[video].seconds[frame].toFixed(2)} s, frame ${frame}`;

/* Marks are stored in the browser, so that closing the page does not lose them. */

const storageKey = `byov review ${data.key}`;
let storage = {};
try {
  storage = localStorage;
} catch {
  // Without storage, marks last until the page is closed.
}
const stored = JSON.parse(storage[storageKey] ?? "{}");
let phases = stored.phases ?? data.phases;
const predicted = (video) => ({
  events: phases.slice(1).map((_, event) => videos[video].events[event] ?? null),
  checked: videos[video].labeled,
});
const marks = videos.map((_, video) => stored.marks?.[video] ?? predicted(video));
const isComplete = (video) => marks[video].events.length > 0 && marks[video].events.every(isPlaced);

/* Pictures. One hidden player paints them one after the other, since browsers limit the number of players. */

const painter = html("video", { muted: true, preload: "auto" });
let painting = Promise.resolve();

function clipOf(video) {
  const shown = videos[video];
  shown.clip ??= shown.mp4 && clipAddress(shown.mp4);
  return shown;
}

function paint(canvas, video, frame) {
  canvas.dataset.frame = frame;
  painting = painting.then(async () => {
    if (!canvas.isConnected || Number(canvas.dataset.frame) !== frame) return;
    const shown = clipOf(video);
    if (painter.src !== shown.clip) {
      showClipFrame(painter, shown, frame);
      await settled(painter);  // a seek that starts before the data have arrived can end at the first frame
    }
    showClipFrame(painter, shown, frame);
    await settled(painter);
    if (painter.readyState) canvas.getContext("2d").drawImage(painter, 0, 0, canvas.width, canvas.height);
  });
}

function picture(video) {
  const { width, height } = videos[video];
  return html("canvas", { width: PICTURE_WIDTH, height: Math.round((PICTURE_WIDTH * height) / width) });
}

/* Selected video and event, and the frame shown. The event moves with the frame, except while playing. */

const now = { video: 0, event: 0, frame: 0 };
const markNow = () => marks[now.video];

function select(video, event = 0) {
  playback.pause();
  now.video = clamp(video, 0, videos.length - 1);
  selectEvent(event);
  showVideo();
}

function selectEvent(event) {
  const { events } = markNow();
  playback.pause();
  now.event = clamp(event, 0, Math.max(events.length - 1, 0));
  // An event without a frame starts at the previous one.
  now.frame = events.slice(0, now.event + 1).findLast(isPlaced) ?? 0;
  show();
}

/** Move the selected event to a frame, but not past its neighbors. */
function move(frame) {
  const { events } = markNow();
  playback.pause();
  const before = events.slice(0, now.event).filter(isPlaced);
  const after = events.slice(now.event + 1).filter(isPlaced);
  now.frame = clamp(frame, Math.max(0, ...before), Math.min(videos[now.video].count - 1, ...after));
  if (events.length) {
    events[now.event] = now.frame;
    markNow().checked = isComplete(now.video);
  }
  save();
  show();
}

function setChecked(video, checked) {
  marks[video].checked = checked && isComplete(video);
  save();
  show();
}

/** Mark the video as checked and select the next one, or select the first event that has no frame. */
function confirmVideo() {
  if (!isComplete(now.video)) return selectEvent(markNow().events.indexOf(null));
  setChecked(now.video, true);
  return select(now.video + 1);
}

function save() {
  storage[storageKey] = JSON.stringify({ phases, marks });
}

/* Editor */

const eventButtons = [];
let film = new Map();  // frame → button with its picture

function button(className, choose, ...children) {
  const element = html("button", { type: "button", className }, ...children);
  element.addEventListener("click", choose);
  return element;
}

/** Show the selected video and its list of events. */
function showVideo() {
  const { name, view, count, confidence, problems, labeled, stride } = videos[now.video];
  byId("name").textContent = name;
  byId("facts").textContent = [
    view, `${count} frames`, labeled ? "labeled by you" : `confidence ${percent(confidence)}`,
    ...(stride > 1 ? [`pictures of every ${stride} frames`] : []),
  ].join(", ");
  byId("problems").replaceChildren(...problems.map((problem) => html("li", { textContent: problem })));
  eventButtons.splice(0, Infinity, ...phases.slice(1).map((phase, event) => {
    const swatch = html("i", { className: `swatch square p${(event + 1) % PHASE_COLORS}` });
    return button("event", () => selectEvent(event), html("b", {}, swatch, phase), html("span"), html("small"));
  }));
  byId("events").replaceChildren(...eventButtons);
  film = new Map();
  show();
}

/** Show the selected frame, the events and the marks. */
function show() {
  const { video, event, frame } = now;
  const { events } = markNow();
  showClipFrame(byId("tile"), clipOf(video), frame);
  byId("time").textContent = timeText(video, frame);
  eventButtons.forEach((element, index) => {
    const [, time, note] = element.children;
    const { labeled, events: { [index]: before }, confidences } = videos[video];
    element.setAttribute("aria-pressed", index === event);
    time.textContent = isPlaced(events[index]) ? timeText(video, events[index]) : "not placed yet";
    const source = labeled ? "labeled by you" : "predicted";
    note.textContent = before === undefined ? ""
      : before !== events[index] ? `${source} at frame ${before}`
      : labeled ? source : `${source}, confidence ${percent(confidences[index])}`;
  });
  byId("place").disabled = !events.length || events[event] === frame;
  byId("place").textContent = events.length ? `Set “${phases[event + 1]}” here` : "Set here";
  byId("confirm").disabled = !events.length;
  showFilm();
  showChart();
  cards.forEach((card, index) => card.update(index));
  showSaved();
}

function showFilm() {
  if (playback.turn) return;
  const { video, frame } = now;
  const first = clamp(frame - NEIGHBORS, 0, Math.max(videos[video].count - 2 * NEIGHBORS - 1, 0));
  const last = Math.min(first + 2 * NEIGHBORS, videos[video].count - 1);
  const kept = film;
  film = new Map();
  for (let each = first; each <= last; each += 1) {
    const shot = kept.get(each) ?? button("shot", () => move(each), picture(video), html("span", { textContent: each }));
    shot.classList.toggle("own", each === frame);
    film.set(each, shot);
  }
  byId("film").replaceChildren(...film.values());
  for (const [each, shot] of film) if (!kept.has(each)) paint(shot.firstChild, video, each);
}

function showChart() {
  const { video, event, frame } = now;
  const { count, curve, events: before } = videos[video];
  const { events } = markNow();
  const x = (each) => (100 * (each + 0.5)) / count;
  const line = (kind, each) => svg("line", { class: kind, x1: x(each), x2: x(each), y2: 100 });
  const bounds = [0, ...events, count];
  const bands = events.every(isPlaced) && events.length ? phases.map((_, phase) => svg("rect", {
    class: `p${phase % PHASE_COLORS}`, x: (100 * bounds[phase]) / count, width: (100 * (bounds[phase + 1] - bounds[phase])) / count, height: 100,
  })) : [];
  const chart = byId("chart");
  chart.replaceChildren(
    ...bands,
    svg("line", { class: "clock", x1: x(0), y1: 100, x2: x(count - 1), y2: 0 }),
    svg("polyline", { class: "progress", points: curve.map(([each, progress]) => `${x(each)},${100 - 100 * progress}`).join(" ") }),
    ...before.map((each) => line("predicted", each)),
    ...events.flatMap((each, index) => (isPlaced(each) ? [line(index === event ? "event own" : "event", each)] : [])),
    line("here", frame),
  );
  const values = { valuemin: 0, valuemax: count - 1, valuenow: frame, valuetext: timeText(video, frame) };
  for (const [name, value] of Object.entries(values)) chart.setAttribute(`aria-${name}`, value);
}

function startChart() {
  const chart = byId("chart");
  const frameAt = ({ clientX }) => {
    const box = chart.getBoundingClientRect();
    return Math.floor(((clientX - box.left) / box.width) * videos[now.video].count);
  };
  chart.addEventListener("pointerdown", (pointer) => {
    // Near the line of an event, grab it; elsewhere, move the selected event there.
    const near = (GRAB_PX * videos[now.video].count) / chart.getBoundingClientRect().width;
    const distances = markNow().events.map((event) => (isPlaced(event) ? Math.abs(event - frameAt(pointer)) : Infinity));
    const nearest = distances.indexOf(Math.min(...distances));
    chart.setPointerCapture(pointer.pointerId);
    if (distances[nearest] <= near) selectEvent(nearest);
    else move(frameAt(pointer));
  });
  chart.addEventListener("pointermove", (pointer) => {
    if (chart.hasPointerCapture(pointer.pointerId)) move(frameAt(pointer));
  });
}

/* List of videos */

class Card {
  constructor(video) {
    const { name, view, confidence, problems, labeled } = videos[video];
    this.video = video;
    this.isVisible = false;
    this.box = html("input", { type: "checkbox", ariaLabel: `${name} is checked` });
    this.box.addEventListener("change", () => setChecked(video, this.box.checked));
    this.pictures = html("div", { className: "pictures" });
    const title = button("name", () => openVideo(video), html("b", { textContent: name }),
      html("span", { textContent: labeled ? `${view}, labeled by you` : `${view}, ${percent(confidence)}` }));
    this.element = html("li", {}, html("div", { className: "head" }, this.box, title),
      html("p", { className: "problems", textContent: problems.join("; ") }), this.pictures);
    this.setPhases();
  }

  /** Create one picture per event or, without events, evenly spaced ones. */
  setPhases() {
    const { video } = this;
    const names = phases.length > 1 ? phases.slice(1) : ["", "", ""];
    this.pictures.replaceChildren(...names.map((name, event) => (
      button("shot", () => openVideo(video, event), picture(video), html("span", { textContent: name })))));
  }

  update() {
    const { video, box, element, pictures } = this;
    const { events, checked } = marks[video];
    Object.assign(box, { checked, disabled: !isComplete(video) });
    element.classList.toggle("own", video === now.video);
    element.classList.toggle("checked", checked);
    if (!this.isVisible) return;
    [...pictures.children].forEach(({ firstChild: canvas }, event, { length }) => {
      const even = Math.floor(((event + 0.5) / length) * videos[video].count);
      const frame = events.length ? events[event] : even;
      if (!isPlaced(frame)) {
        delete canvas.dataset.frame;
        canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
      } else if (Number(canvas.dataset.frame ?? NaN) !== frame) paint(canvas, video, frame);
    });
  }
}

/** Select a video in the list, and scroll to it where the list is below. */
function openVideo(video, event = 0) {
  select(video, event);
  if (byId("editor").getBoundingClientRect().top < 0) byId("editor").scrollIntoView();
}

function startList() {
  byId("list").append(...cards.map(({ element }) => element));
  const observer = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
    if (!isIntersecting) return;
    const card = cards.find(({ element }) => element === target);
    observer.unobserve(target);
    card.isVisible = true;
    card.update();
  }));
  cards.forEach(({ element }) => observer.observe(element));
}

/* Labels as a CSV file */

const quote = (cell) => (/[",;\t\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);

function showSaved() {
  const included = [...videos.keys()].filter((video) => marks[video].checked || (byId("include").checked && isComplete(video)));
  const rows = included.map((video) => (
    [...videos[video].cells, marks[video].events.map((frame) => `${frame}f`).join(";"), phases.join(";")]));
  const text = [data.columns, ...rows].map((cells) => `${cells.map(quote).join(",")}\n`).join("");
  const link = byId("save");
  byId("checked-count").textContent = marks.filter(({ checked }) => checked).length;
  link.textContent = `Save CSV (${included.length} video${included.length === 1 ? "" : "s"})`;
  if (included.length) link.href = `data:text/csv;charset=utf-8,${encodeURIComponent(text)}`;
  else link.removeAttribute("href");
}

/* Names of the phases, if there are no labels */

function startNaming() {
  const [input, problem] = [byId("phases"), byId("naming-problem")];
  input.value = phases.join("; ");
  input.addEventListener("change", () => {
    const names = input.value.split(";").map((name) => name.trim()).filter(Boolean);
    problem.textContent = names.length < 2 ? "Name at least two phases, separated by semicolons."
      : new Set(names).size < names.length ? "Give each phase its own name." : "";
    problem.hidden = !problem.textContent;
    if (problem.textContent) return;
    phases = names;
    marks.forEach((mark, video) => {
      mark.events = phases.slice(1).map((_, event) => mark.events[event] ?? null);
      mark.checked = mark.checked && isComplete(video);
    });
    cards.forEach((card) => card.setPhases());
    save();
    select(now.video, now.event);
  });
}

/* Start */

const playback = new Playback(byId("play"), [byId("tile")], () => {
  const { count, seconds } = videos[now.video];
  if (now.frame === count - 1) {
    playback.pause();
    return 0;
  }
  now.frame += 1;
  show();
  return 1000 * clamp(seconds[now.frame] - seconds[now.frame - 1], 0.01, 2);
});
const cards = videos.map((_, video) => new Card(video));
const controls = {
  place: () => move(now.frame),
  play: show,
  reset: () => {
    marks[now.video] = predicted(now.video);
    save();
    selectEvent(now.event);
  },
  previous: () => select(now.video - 1),
  next: () => select(now.video + 1),
  confirm: confirmVideo,
};
for (const [id, control] of Object.entries(controls)) byId(id).addEventListener("click", control);
byId("include").addEventListener("change", showSaved);
document.addEventListener("keydown", (event) => {
  const isIn = (selector) => event.target.closest(selector) !== null;
  const steps = { ArrowRight: 1, ArrowLeft: -1 };
  const events = { ArrowDown: 1, ArrowUp: -1 };
  if (event.ctrlKey || event.altKey || event.metaKey || isIn("#phases")) return;
  if (event.key in steps) move(now.frame + steps[event.key] * (event.shiftKey ? 10 : 1));
  else if (event.key in events) selectEvent(now.event + events[event.key]);
  else if (event.key.toLowerCase() === "s") move(now.frame);
  else if (isIn("button, a, input")) return;
  else if (event.key === " ") byId("play").click();
  else if (event.key === "Enter") confirmVideo();
  else return;
  event.preventDefault();
});
startChart();
startList();
if (byId("phases")) startNaming();
if (byId("next-link")) {
  const advised = Number(byId("data").dataset.next);
  byId("next-link").textContent = videos[advised].name;
  byId("next-link").addEventListener("click", () => openVideo(advised));
}
document.querySelector("main").hidden = !videos.length;
if (videos.length) select(0);
