"use strict";
/* Parts shared by all pages: elements, clips and playback. All text is inserted as text, never as markup. */

const byId = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
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

/* Clips: videos in which every frame lasts 1 / CLIP_FPS seconds, so that a frame number gives the time to seek to. They have
   every `stride`-th frame of the original video. Tiles are <video> elements that show one frame. */

const CLIP_FPS = 25;  // as in report/clips.py

/** Return an address for the contents of an MP4 file in base64. */
const clipAddress = (mp4) => URL.createObjectURL(new Blob([decodeBytes(mp4)], { type: "video/mp4" }));

/** Show a frame of a video, given as { name, clip, stride, width, height }, where `clip` is an address or null. */
function showClipFrame(tile, { name, clip, stride, width, height }, frame) {
  tile.setAttribute("aria-label", `${name}, frame ${frame}${clip ? "" : ": no picture"}`);
  tile.classList.toggle("missing", !clip);
  if (!clip) {
    tile.removeAttribute("src");
    return;
  }
  if (tile.src !== clip) {
    Object.assign(tile, { src: clip, width, height });
    tile.style.setProperty("--aspect", width / height);
  }
  tile.currentTime = (Math.round(frame / stride) + 0.5) / CLIP_FPS;
}

/** Wait until a tile shows its frame. */
async function settled(tile) {
  while (tile.src && !tile.error && (tile.readyState < HTMLMediaElement.HAVE_CURRENT_DATA || tile.seeking)) {
    await new Promise((done) => {
      for (const event of ["seeked", "loadeddata", "error", "emptied"]) tile.addEventListener(event, done, { once: true });
    });
  }
}

/** Playback of frames by seeking. `advance` shows the next frame and returns how long to show it, in milliseconds; on slow
 *  machines, frames stay until all tiles have decoded them. */
class Playback {
  constructor(button, tiles, advance) {
    Object.assign(this, { button, tiles, advance, turn: null });
    button.addEventListener("click", () => this.toggle());
  }

  toggle() {
    if (this.turn) this.pause();
    else this.play();
  }

  pause() {
    this.turn = null;
    this.button.textContent = "Play";
  }

  async play() {
    const turn = {};  // differs from the turns of other calls
    this.turn = turn;
    this.button.textContent = "Pause";
    while (this.turn === turn) {
      const end = performance.now() + this.advance();
      await Promise.all([new Promise((done) => setTimeout(done, end - performance.now())), ...this.tiles.map(settled)]);
    }
  }
}
