/* A card beside the pointer, with the frame or the two frames that it points at. */

class Card {
  constructor() {
    this.element = byId("card");
    document.addEventListener("pointerdown", (event) => event.target.closest(".cloud, .cells") || this.hide());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.hide());
  }

  /** frames: one or two pairs of video and moment. */
  show(frames, lines, x, y) {
    [byId("card-tile"), byId("card-other")].forEach((tile, index) => {
      tile.hidden = index >= frames.length;
      if (!tile.hidden) showTile(tile, ...frames[index]);
    });
    byId("card-text").textContent = lines.filter(Boolean).join("\n");
    this.element.hidden = false;
    this.putBeside(x, y);
  }

  /** Right of the point, or left of it where there is no room; always wholly in the window. */
  putBeside(x, y) {
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const { clientWidth, clientHeight } = document.documentElement;
    const left = x + 16 + width <= clientWidth ? x + 16 : x - 16 - width;
    this.element.style.left = `${scrollX + Math.max(4, Math.min(left, clientWidth - width - 4))}px`;
    this.element.style.top = `${scrollY + Math.max(4, Math.min(y - height / 2, clientHeight - height - 4))}px`;
  }

  hide() {
    this.element.hidden = true;
  }
}
