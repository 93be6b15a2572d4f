/* The one state that all parts read and set: this moment of this video, that video to compare, the way to play.
   It is the page's address too, so that it can be shared and the back button works. */

const SETTLED_MS = 300;  // browsers refuse to note hundreds of addresses in a few seconds
const WAYS = ["nearest", "path"];

class State {
  constructor() {
    this.watchers = [];
    this.timer = null;
    const first = data.videos.findIndex(({ view }) => view === "ego");
    this.now = this.sound({ video: Math.max(first, 0), moment: 0, other: -1, way: WAYS[0] });
    this.readAddress();
    addEventListener("popstate", () => this.readAddress());
    addEventListener("hashchange", () => this.readAddress());
  }

  watch(watcher) {
    this.watchers.push(watcher);
    watcher(this.now);
  }

  /** Change some of it by a click: a place to come back to. */
  go(change) {
    this.set(change);
    this.note("pushState");
  }

  /** Change some of it in passing, by the slider or by playing. */
  pass(change) {
    this.set(change);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.note("replaceState"), SETTLED_MS);
  }

  set(change) {
    this.now = this.sound({ ...this.now, ...this.paired(change), ...change });
    this.watchers.forEach((watcher) => watcher(this.now));
  }

  /** Where another video comes without one to compare: the one before, if it is of the other view and the old one not. */
  paired({ video = this.now.video }) {
    const view = (index) => data.videos[index].view;
    const { video: before, other } = this.now;
    return view(other) === view(video) && view(before) !== view(video) ? { other: before } : {};
  }

  /** Within what there is; a video is compared with another one, of the other view if possible. */
  sound({ video, moment, other, way }) {
    const last = lastMoment(video);
    let beside = other;
    if (other === video || !data.videos[other]) {
      beside = data.videos.findIndex(({ view }) => view !== data.videos[video].view);
      if (beside < 0) beside = data.videos.findIndex((_, index) => index !== video);
      if (beside < 0) beside = video;  // there is only one
    }
    return { video, moment: Math.min(Math.max(moment, 0), last), other: beside, way };
  }

  get address() {
    const { video, moment, other, way } = this.now;
    const parts = { video: data.videos[video].name, frame: frameOf(video, moment), with: data.videos[other].name };
    if (way !== WAYS[0]) parts.play = way;
    return addressOf(parts);
  }

  note(how) {
    clearTimeout(this.timer);
    if (location.hash === this.address) return;
    try {
      history[how](null, "", this.address);
    } catch {
      // where a page may not change its address it still works
    }
  }

  /** An address that names no video of ours, as those of the page's parts do, changes nothing. */
  readAddress() {
    const read = Object.fromEntries(new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B")));
    const find = (name) => data.videos.findIndex((video) => video.name === name);
    const video = find(read.video);
    if (video < 0) return;
    const moment = momentAt(video, Number(read.frame) || 0);
    const beside = "with" in read ? { other: find(read.with) } : {};
    this.set({ video, moment, ...beside, way: WAYS.includes(read.play) ? read.play : this.now.way });
  }
}

function addressOf(parts) {
  const encoded = (text) => encodeURIComponent(text).replaceAll("%2F", "/");
  return `#${Object.entries(parts).map(([key, value]) => `${key}=${encoded(value)}`).join("&")}`;
}
