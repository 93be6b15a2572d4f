/* Embeddings, and what is found by them: distances, nearest moments, the warp path. */

const DIAGONAL = 0;
const UP = 1;
const LEFT = 2;

class Vectors {
  constructor({ name, width, step, numbers }) {
    Object.assign(this, { name, width, step });
    const bytes = atob(numbers);
    this.numbers = Int8Array.from({ length: bytes.length }, (_, at) => bytes.charCodeAt(at));
    let first = 0;
    this.starts = data.videos.map(({ frames }) => (first += frames.length) - frames.length);
    this.pair = { key: null };
  }

  distance(video, moment, other, otherMoment) {
    const { numbers, width } = this;
    const a = (this.starts[video] + moment) * width;
    const b = (this.starts[other] + otherMoment) * width;
    let sum = 0;
    for (let at = 0; at < width; at += 1) {
      const difference = numbers[a + at] - numbers[b + at];
      sum += difference * difference;
    }
    return this.step * Math.sqrt(sum);
  }

  /** Of another video; of equals the first. */
  nearest(video, moment, other) {
    let [best, least] = [0, Infinity];
    for (let at = 0; at <= lastMoment(other); at += 1) {
      const distance = this.distance(video, moment, other, at);
      if (distance < least) [best, least] = [at, distance];
    }
    return { moment: best, distance: least };
  }

  /** Of two videos: all distances, the nearest of each row, the warp path; kept until another pair is asked for. */
  compare(video, other) {
    const key = `${video} ${other}`;
    if (this.pair.key !== key) {
      const [rows, columns] = [lastMoment(video) + 1, lastMoment(other) + 1];
      const distances = new Float64Array(rows * columns);
      const nearest = new Array(rows).fill(0);
      for (let row = 0; row < rows; row += 1) {
        const first = row * columns;
        for (let column = 0; column < columns; column += 1) {
          distances[first + column] = this.distance(video, row, other, column);
          if (distances[first + column] < distances[first + nearest[row]]) nearest[row] = column;
        }
      }
      this.pair = { key, rows, columns, distances, nearest, path: warpPath(distances, rows, columns) };
    }
    return this.pair;
  }
}

/** Pairs from (0, 0) to the last of both, neither running backwards, whose sum is the least. Ties as in byov-align. */
function warpPath(distances, rows, columns) {
  const cameFrom = new Uint8Array(rows * columns);
  let above = new Float64Array(columns).fill(Infinity);
  for (let row = 0; row < rows; row += 1) {
    const costs = new Float64Array(columns);
    for (let column = 0; column < columns; column += 1) {
      const diagonal = row || column ? (column ? above[column - 1] : Infinity) : 0;
      const left = column ? costs[column - 1] : Infinity;
      const entry = Math.min(diagonal, above[column]);
      cameFrom[row * columns + column] = left < entry ? LEFT : diagonal <= above[column] ? DIAGONAL : UP;
      costs[column] = distances[row * columns + column] + Math.min(left, entry);
    }
    above = costs;
  }
  let [row, column] = [rows - 1, columns - 1];
  const path = [[row, column]];
  while (row || column) {
    const step = cameFrom[row * columns + column];
    if (step !== LEFT) row -= 1;
    if (step !== UP) column -= 1;
    path.push([row, column]);
  }
  return path.reverse();
}

/** Kendall's tau-b of a row of moments against their order; null if they never change. */
function kendallsTau(moments) {
  let [agree, untied] = [0, 0];
  for (let one = 0; one < moments.length; one += 1) {
    for (let two = one + 1; two < moments.length; two += 1) {
      agree += Math.sign(moments[two] - moments[one]);
      untied += moments[two] !== moments[one];
    }
  }
  const pairs = (moments.length * (moments.length - 1)) / 2;
  return untied ? agree / Math.sqrt(pairs * untied) : null;
}
