/* Retrieval for the player's frame: the nearest frame of each video of the other view, by each run. */

const RETRIEVED = 5;

class LiveStrips {
  constructor(state, runs) {
    Object.assign(this, { state, runs });
    byId("live-strips").hidden = false;
    state.watch((now) => this.show(now));
  }

  show({ video, moment }) {
    const rows = this.runs.map((run) => html("div", {}, html("h3", { textContent: `For the player's frame, by ${run.name}` }),
      this.row(run, video, moment)));
    byId("live-strips").replaceChildren(...rows);
  }

  row(run, video, moment) {
    const found = data.videos.flatMap(({ view }, other) => (view === data.videos[video].view ? []
      : [{ other, ...run.nearest(video, moment, other) }]));
    found.sort((one, two) => one.distance - two.distance);
    const stills = found.slice(0, RETRIEVED).map(({ other, moment: at }, rank) => {
      const same = samePhase(video, moment, other, at);
      const kind = same === null ? "plain" : same ? "right" : "wrong";
      return still(other, at, { video, moment, other }, `Nearest ${rank + 1}`, kind, same);
    });
    const query = still(video, moment, { video, moment, other: this.state.now.other }, "Query", "query", null);
    return html("div", { className: "strip" }, query, ...stills);
  }
}

/** A picture that leads to a state. */
function still(video, moment, target, title, kind, same) {
  const tile = html("span");
  showTile(tile, video, moment);
  const verdict = html("span");
  showVerdict(verdict, same);
  const address = addressOf({
    video: data.videos[target.video].name, frame: frameOf(target.video, target.moment), with: data.videos[target.other].name,
  });
  return html("figure", { className: `still ${kind}` }, html("a", { className: "window", href: address }, tile),
    html("figcaption", {}, html("b", { textContent: title }), html("span", { textContent: data.videos[video].name }),
      html("span", { textContent: momentText(video, moment) }), verdict));
}
