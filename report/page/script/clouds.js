/* The maps: the same frames as points of several planes. Pointing shows a frame, a click moves the player there. */

const REACH_PX = 18;
const RADIUS_PX = 3.6;
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
const GOLDEN_ANGLE = 137.5;  // neighboring videos differ in hue; all are as bright, to stand out in light and dark

class Cloud {
  constructor(element, places, clouds) {
    Object.assign(this, { svg: element, places, clouds, stop: null });
    this.trail = svg("polyline", { class: "trail" });
    this.points = places.map(([x, y], index) => drawPoint(x, y, data.points[index][0]));
    this.ring = svg("circle", { r: 8, class: "ring" });
    this.pointed = svg("circle", { r: 6, class: "pointed", visibility: "hidden" });
    element.append(this.trail, svg("g", { class: "points" }, ...this.points), this.ring, this.pointed);
    element.addEventListener("pointermove", (event) => this.point(event));
    element.addEventListener("pointerdown", (event) => this.point(event));
    // Without this a click would move the focus, and with it the card, to the point that Tab stops at.
    element.addEventListener("mousedown", (event) => event.preventDefault());
    element.addEventListener("click", (event) => this.choose(this.nearest(event.clientX, event.clientY)));
    element.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && clouds.clear());
    element.addEventListener("focusin", () => this.clouds.pointAt(this.stop, this));
    element.addEventListener("focusout", () => clouds.clear());
    element.addEventListener("keydown", (event) => this.key(event));
    this.setStop(0);
  }

  /** Tab stops at one point of the plot; the arrow keys move it. */
  setStop(index) {
    if (this.stop !== null) this.points[this.stop].removeAttribute("tabindex");
    this.stop = index;
    const point = this.points[index];
    point.setAttribute("tabindex", "0");
    point.setAttribute("role", "img");
    point.setAttribute("aria-label", describe(index).join(", "));
  }

  key(event) {
    if (event.key === "Enter") this.choose(this.stop);
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    this.setStop((this.stop + STEPS[event.key] + this.points.length) % this.points.length);
    this.points[this.stop].focus();
  }

  point(event) {
    const index = this.nearest(event.clientX, event.clientY);
    if (index === null) this.clouds.clear();
    else this.clouds.pointAt(index, this);
  }

  choose(index) {
    if (index === null) return;
    const [video, moment] = data.points[index];
    this.setStop(index);
    this.clouds.state.go({ video, moment });
  }

  nearest(clientX, clientY) {
    const box = this.svg.getBoundingClientRect();
    const distances = this.places.map((place) => {
      const [x, y] = this.inWindow(place, box);
      return Math.hypot(x - clientX, y - clientY);
    });
    const least = distances.reduce((best, distance, index) => (distance < distances[best] ? index : best), 0);
    return distances[least] <= REACH_PX ? least : null;
  }

  inWindow([x, y], box = this.svg.getBoundingClientRect()) {
    const scale = box.width / this.svg.viewBox.baseVal.width;
    return [box.left + x * scale, box.top + y * scale];
  }

  put(circle, index) {
    circle.setAttribute("visibility", index === null ? "hidden" : "visible");
    if (index === null) return;
    circle.setAttribute("cx", this.places[index][0]);
    circle.setAttribute("cy", this.places[index][1]);
  }

  showTrail(indices) {
    this.trail.setAttribute("points", indices.map((index) => this.places[index].join(",")).join(" "));
  }
}

function drawPoint(x, y, video) {
  if (data.videos[video].view === "ego") return svg("circle", { cx: x, cy: y, r: RADIUS_PX });
  const side = 2 * RADIUS_PX * 0.9;  // of about the same area as the circle
  return svg("rect", { x: x - side / 2, y: y - side / 2, width: side, height: side });
}

function describe(index) {
  const [video, moment] = data.points[index];
  return [data.videos[video].name, `frame ${frameOf(video, moment)}, ${timeOf(video, moment)}`,
    phaseName(phaseOf(video, moment))].filter(Boolean);
}

/** A class of the style sheet, or a color of its own. */
const COLOURINGS = {
  phase: (video, moment) => [phaseOf(video, moment) === null ? "unlabeled" : `p${phaseOf(video, moment) % data.colors}`],
  time: (video, moment) => [`t${Math.round(10 * shareOf(video, moment))}`],
  video: (video) => ["", `oklch(0.62 0.14 ${(video * GOLDEN_ANGLE) % 360})`],
  view: (video) => [data.videos[video].view === "ego" ? "p0" : "p1"],
};

class Clouds {
  constructor(state, card) {
    Object.assign(this, { state, card });
    this.clouds = [...document.querySelectorAll(".cloud")].map((element, index) => new Cloud(element, data.maps[index], this));
    byId("color-by").addEventListener("change", () => this.color());
    byId("trail").addEventListener("change", () => this.follow(state.now));
    byId("clouds").hidden = false;
    byId("cloud-choices").hidden = false;
    this.color();
    state.watch((now) => this.follow(now));
  }

  color() {
    const by = byId("color-by").value;
    byId("phase-key").hidden = by !== (data.phases.length ? "phase" : "time");
    data.points.forEach(([video, moment], index) => {
      const [name, color = ""] = COLOURINGS[by](video, moment);
      for (const { points } of this.clouds) {
        points[index].setAttribute("class", name);
        if (points[index].style.color || color) points[index].style.color = color;
      }
    });
  }

  /** Ring the player's frame, or the nearest of its video that is a point, and draw the video's trail. */
  follow({ video, moment }) {
    const own = data.points.flatMap(([of], index) => (of === video ? [index] : []));
    const gap = (index) => Math.abs(frameOf(video, data.points[index][1]) - frameOf(video, moment));
    const closest = own.length ? own.reduce((best, index) => (gap(index) < gap(best) ? index : best)) : null;
    for (const cloud of this.clouds) {
      cloud.put(cloud.ring, closest);
      cloud.showTrail(byId("trail").checked ? own : []);
    }
  }

  pointAt(index, cloud) {
    this.clouds.forEach((each) => each.put(each.pointed, index));
    this.card.show([data.points[index]], describe(index), ...cloud.inWindow(cloud.places[index]));
  }

  clear() {
    this.clouds.forEach((each) => each.put(each.pointed, null));
    this.card.hide();
  }
}
