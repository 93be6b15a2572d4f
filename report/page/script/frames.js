"use strict";
/* Frames of videos: their pictures, times and phases. A moment is a frame that the page knows, by its index among
   them. All texts go in as text, never as markup. */

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function html(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  Object.assign(made, attributes);
  made.append(...children.filter((child) => child !== null));
  return made;
}

const frameOf = (video, moment) => data.videos[video].frames[moment];
const timeText = (seconds) => (seconds === null ? "time unknown" : `${seconds.toFixed(2)} s`);
const timeOf = (video, moment) => timeText(data.videos[video].seconds[moment]);
const momentText = (video, moment) => `${timeOf(video, moment)}, frame ${frameOf(video, moment)}`;
const lastMoment = (video) => data.videos[video].frames.length - 1;

/** The number of the phase, or null where there is none. */
function phaseOf(video, moment) {
  const frame = frameOf(video, moment);
  const run = data.videos[video].runs.find(([first, after]) => first <= frame && frame < after);
  return run ? run[2] : null;
}

const phaseName = (phase) => (phase === null ? "" : data.phases[phase] ?? `phase ${phase}`);

/** Where in its video a moment lies, from 0 to 1: all that a clock knows. */
const shareOf = (video, moment) => frameOf(video, moment) / Math.max(data.videos[video].count - 1, 1);

/** The moment whose frame is nearest to a frame, which need not be whole. */
function momentAt(video, frame) {
  const { frames } = data.videos[video];
  let best = 0;
  for (let at = 1; at < frames.length; at += 1) {
    if (Math.abs(frames[at] - frame) < Math.abs(frames[best] - frame)) best = at;
  }
  return best;
}

/** What a clock would match. */
const clockMoment = (video, moment, other) => momentAt(other, shareOf(video, moment) * (data.videos[other].count - 1));

/** Make an element a window on the picture of a moment. */
function showTile(element, video, moment) {
  const { name, columns } = data.videos[video];
  const row = Math.floor(moment / columns);
  element.className = columns ? `tile v${video} v${video}r${row} c${columns}x${moment % columns}` : "tile missing";
  element.textContent = columns ? "" : "no picture";
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", `${name}, frame ${frameOf(video, moment)}`);
}

/** Whether two moments are of one phase: true, false, or null where that is not known. */
function samePhase(video, moment, other, otherMoment) {
  const [one, two] = [phaseOf(video, moment), phaseOf(other, otherMoment)];
  return one === null || two === null ? null : one === two;
}

function showVerdict(element, same) {
  element.textContent = same === null ? "" : same ? "✓ same phase" : "✗ other phase";
  element.className = same === null ? "" : same ? "same" : "other";
}
