/* All parts on one state; a part that is not on the page is left out. */

if (data.videos.length) {
  const state = new State();
  const card = new Card();
  const runs = data.runs.map((run) => new Vectors(run));
  if (byId("stage")) {
    new Player(state, runs);
    new Dock(state, runs);
    new Marks(state);
  }
  if (data.maps.length) new Clouds(state, card);
  if (byId("matrices")) {
    byId("matrices").hidden = false;
    runs.forEach((run, index) => new Matrix(byId(`matrix-${index}`), run, state, card));
  }
  if (byId("live-strips")) new LiveStrips(state, runs);
}
