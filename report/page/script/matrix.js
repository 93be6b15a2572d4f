/* The distances between all moments of the player's two videos, by each run, with what aligns them drawn over it. */

const VIRIDIS = ["440154", "482878", "3e4a89", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725"]
  .map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));

/** share: 0 is dark, 1 is bright. */
function viridis(share) {
  const place = share * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(place), VIRIDIS.length - 2);
  return VIRIDIS[low].map((value, at) => value + (place - low) * (VIRIDIS[low + 1][at] - value));
}

/** As pixels of a canvas: a thousand colors once instead of one for each cell. */
const SHADES = new Uint32Array(new Uint8ClampedArray(
  Array.from({ length: 1024 }, (_, at) => [...viridis(at / 1023), 255]).flat()).buffer);

class Matrix {
  constructor(figure, run, state, card) {
    Object.assign(this, { figure, run, state, card });
    this.canvas = figure.querySelector("canvas");
    this.over = figure.querySelector("svg");
    this.cells = figure.querySelector(".cells");
    this.here = svg("g", { class: "here" });
    this.cells.addEventListener("pointermove", (event) => this.point(event));
    this.cells.addEventListener("pointerdown", (event) => this.point(event));
    this.cells.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && card.hide());
    this.cells.addEventListener("click", (event) => state.go({ moment: this.cell(event)[0] }));
    state.watch((now) => this.show(now));
  }

  show({ video, moment, other }) {
    const pair = this.run.compare(video, other);
    if (this.pair !== pair) this.draw(pair, video, other);
    const x = pair.nearest[moment] + 0.5;
    this.here.replaceChildren(
      svg("line", { x1: 0, y1: moment + 0.5, x2: pair.columns, y2: moment + 0.5 }),
      svg("line", { x1: x, y1: 0, x2: x, y2: pair.rows }),
    );
  }

  draw(pair, video, other) {
    this.pair = pair;
    this.paint(pair);
    const names = [video, other].map((index) => `${data.videos[index].name}, to ${timeOf(index, lastMoment(index))}`);
    this.figure.querySelector(".down").textContent = names[0];
    this.figure.querySelector(".across").textContent = names[1];
    this.canvas.setAttribute("aria-label", `Distances between ${names[0]} (down) and ${names[1]} (across)`);
    const tau = kendallsTau(pair.nearest);
    byId(`${this.figure.id}-tau`).textContent = tau === null ? "no tau" : `tau ${tau.toFixed(3)}`;
    this.over.setAttribute("viewBox", `0 0 ${pair.columns} ${pair.rows}`);
    const path = pair.path.map(([row, column]) => `${column + 0.5},${row + 0.5}`).join(" ");
    const clock = pair.nearest.map((_, row) => `${clockMoment(video, row, other) + 0.5},${row + 0.5}`).join(" ");
    // A line of no length with round ends is a dot, however the drawing is stretched.
    const dots = pair.nearest.map((column, row) => `M${column + 0.5} ${row + 0.5}h0`).join("");
    this.over.replaceChildren(
      ...this.boundaries(pair, video, other),
      svg("polyline", { class: "ghost casing", points: clock }), svg("polyline", { class: "ghost", points: clock }),
      svg("polyline", { class: "path casing", points: path }), svg("polyline", { class: "path", points: path }),
      svg("path", { class: "nearest casing", d: dots }), svg("path", { class: "nearest", d: dots }),
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
      pixels[at] = SHADES[Math.round((high - distance) * scale)];
    });
    drawing.putImageData(image, 0, 0);
  }

  /** Lines where a phase begins, down and across; not where the one before is not known. */
  boundaries({ rows, columns }, video, other) {
    const begins = (of, count) => Array.from({ length: count }, (_, at) => at).filter((at) => {
      const [before, after] = at ? [phaseOf(of, at - 1), phaseOf(of, at)] : [null, null];
      return before !== null && after !== null && before !== after;
    });
    return [
      ...begins(video, rows).map((y) => svg("line", { class: "boundary", x1: 0, y1: y, x2: columns, y2: y })),
      ...begins(other, columns).map((x) => svg("line", { class: "boundary", x1: x, y1: 0, x2: x, y2: rows })),
    ];
  }

  /** Row and column below the pointer. */
  cell({ clientX, clientY }) {
    const box = this.cells.getBoundingClientRect();
    const at = (share, count) => Math.min(Math.max(Math.floor(share * count), 0), count - 1);
    return [at((clientY - box.top) / box.height, this.pair.rows), at((clientX - box.left) / box.width, this.pair.columns)];
  }

  point(event) {
    const { video, other } = this.state.now;
    const [row, column] = this.cell(event);
    const distance = this.pair.distances[row * this.pair.columns + column];
    const lines = [`${data.videos[video].name}: ${momentText(video, row)}`,
      `${data.videos[other].name}: ${momentText(other, column)}`, `distance ${distance.toPrecision(3)}`];
    this.card.show([[video, row], [other, column]], lines, event.clientX, event.clientY);
  }
}
