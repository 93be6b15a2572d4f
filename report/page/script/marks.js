/* Events that the reader marks, kept in this browser, and the CSV that byov-extract reads. */

const HEADER = ["path", "view", "split", "id", "events", "pair"];
const [VIEW, ID, EVENTS] = [1, 3, 4];

class Marks {
  constructor(state) {
    this.state = state;
    this.key = `byov marks of ${data.dataset}`;
    this.marks = this.recall();
    byId("mark").addEventListener("click", () => this.add());
    byId("mark-forget").addEventListener("click", () => this.keep({}));
    byId("mark-copy").addEventListener("click", () => this.copy());
    document.addEventListener("keydown", (event) => {
      const busy = event.ctrlKey || event.altKey || event.metaKey || event.target.closest("select, textarea");
      if (event.key.toLowerCase() === "m" && !busy) this.add();
    });
    state.watch(() => this.show());
  }

  /** Seconds by the video's name. What another page may have left there is not trusted. */
  recall() {
    try {
      const kept = Object.entries(JSON.parse(localStorage.getItem(this.key)) ?? {});
      return Object.fromEntries(kept.filter(([, times]) => Array.isArray(times) && times.every(Number.isFinite)));
    } catch {
      return {};  // where nothing may be kept, or what is kept is damaged
    }
  }

  keep(marks) {
    this.marks = marks;
    try {
      localStorage.setItem(this.key, JSON.stringify(marks));
    } catch {
      // they last as long as the page is open
    }
    this.show();
  }

  /** In seconds from the video's first frame. */
  add() {
    const { video, moment } = this.state.now;
    const { name, seconds } = data.videos[video];
    if (seconds[moment] === null || seconds[0] === null) return;
    const time = Number((seconds[moment] - seconds[0]).toFixed(3));
    const times = [...new Set([...(this.marks[name] ?? []), time])].sort((one, two) => one - two);
    this.keep({ ...this.marks, [name]: times });
  }

  remove(name, time) {
    const { [name]: times, ...others } = this.marks;
    const left = times.filter((each) => each !== time);
    this.keep(left.length ? { ...others, [name]: left } : others);
  }

  show() {
    const marked = Object.entries(this.marks);
    const count = marked.reduce((sum, [, times]) => sum + times.length, 0);
    byId("mark-count").textContent = count ? `${count} in ${marked.length} video${marked.length > 1 ? "s" : ""}` : "none";
    byId("mark-list").replaceChildren(...marked.flatMap(([name, times]) => times.map((time) => this.item(name, time))));
    const { name } = data.videos[this.state.now.video];
    byId("mark-line").value = csvLine(this.lines().find((line) => `${line[VIEW]}/${line[ID]}` === name) ?? []);
    byId("mark-save").href = `data:text/csv;charset=utf-8,${encodeURIComponent(this.csv())}`;
    this.warn();
  }

  item(name, time) {
    const video = data.videos.findIndex((each) => each.name === name);
    const text = `${name}, ${timeText(time)}`;
    const frame = video < 0 ? 0 : data.videos[video].seconds.findIndex((each) => each - data.videos[video].seconds[0] >= time - 5e-4);
    const shown = video < 0 ? html("span", { textContent: text })
      : html("a", { textContent: text, href: addressOf({ video: name, frame: frameOf(video, Math.max(frame, 0)) }) });
    const drop = html("button", { type: "button", textContent: "×", ariaLabel: `Forget ${text}` });
    drop.addEventListener("click", () => this.remove(name, time));
    return html("li", {}, shown, drop);
  }

  /** The dataset's lines, with the events of videos that have marks in the place of those that were known. */
  lines() {
    return data.lines.map((line) => {
      const times = this.marks[`${line[VIEW]}/${line[ID]}`];
      return times ? line.with(EVENTS, times.map((time) => time.toFixed(3)).join(";")) : line;
    });
  }

  csv() {
    return [HEADER, ...this.lines()].map((line) => `${csvLine(line)}\n`).join("");
  }

  /** byov-extract wants as many events of every video that has any, but of one whose end has no labels. */
  warn() {
    const events = this.lines().map((line) => line[EVENTS]).filter((cell) => cell && !cell.endsWith("-"));
    const counts = new Set(events.map((cell) => cell.split(";").filter((mark) => !/[-+]$/.test(mark)).length));
    const missing = this.lines().filter((line) => !line[0]).length;
    const texts = [
      counts.size > 1 ? `Videos differ in their number of events (${[...counts].join(", ")}): byov-extract wants the same of all.` : "",
      missing ? `The feature cache does not say where ${missing} of the videos are: fill in their paths.` : "",
    ].filter(Boolean);
    byId("mark-warning").hidden = !texts.length;
    byId("mark-warning").textContent = texts.join(" ");
  }

  copy() {
    byId("mark-line").select();
    if (navigator.clipboard) navigator.clipboard.writeText(byId("mark-line").value).catch(() => {});
    else document.execCommand("copy");
  }
}

/** Quoted where a field needs it. */
function csvLine(fields) {
  return fields.map((field) => (/[",\n\r]|^\s|\s$/.test(field) ? `"${field.replaceAll('"', '""')}"` : field)).join(",");
}
