// A picture on a canvas, and what became of its patches.

// Okabe and Ito's colours first, told apart by colour-blind readers too; then five of Tol's.
const PALETTE = [
  "#e69f00", "#0072b2", "#cc79a7", "#009e73", "#f0e442", "#d55e00", "#56b4e9", "#882255", "#999933", "#44aa99",
  "#332288", "#dddddd",
];
const PRUNED = 2; // this and above: the patch is gone
const TINT = 0.6;

// Black with grey diagonals, which no dark object looks like.
function hatched(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.fillRect(0, 0, 8, 8);
  pen.fillStyle = "#787878";
  for (let i = 0; i < 8; i += 1) pen.fillRect(i, 7 - i, 1, 1);
  return context.createPattern(tile, "repeat");
}

// What the tower sees: the middle of the picture, or all of it; the canvas is a square either way.
export function paint(canvas, picture, square) {
  const context = canvas.getContext("2d");
  const { width, height } = picture;
  const side = Math.min(width, height);
  const [x, y, w, h] = square === "squash" || square === "keep" ? [0, 0, width, height] : [(width - side) / 2, (height - side) / 2, side, side];
  context.imageSmoothingEnabled = side > canvas.width / 2;
  context.globalAlpha = 1;
  context.drawImage(picture, x, y, w, h, 0, 0, canvas.width, canvas.height);
}

// Patches side by side, where they are squares and fill a picture of this width over height.
function columnsOf(patches, ratio) {
  const miss = (columns) => Math.abs(Math.log((columns * columns) / (patches * ratio)));
  let best = 1;
  for (let n = 2; n <= patches; n += 1) if (patches % n === 0 && miss(n) < miss(best)) best = n;
  return best;
}

export function overlay(canvas, tokens, block, ratio) {
  const context = canvas.getContext("2d");
  const gone = hatched(context);
  const fates = tokens.fate[block], colours = tokens.colour[block];
  const grid = columnsOf(fates.length, ratio), wide = canvas.width / grid, high = (canvas.height * grid) / fates.length;
  fates.forEach((fate, patch) => {
    if (fate < PRUNED && colours[patch] < 0) return;
    context.globalAlpha = fate < PRUNED ? TINT : 1;
    context.fillStyle = fate < PRUNED ? PALETTE[colours[patch] % PALETTE.length] : gone;
    const [left, top] = [(patch % grid) * wide, Math.floor(patch / grid) * high];
    const [right, bottom] = [left + wide, top + high].map(Math.round);
    context.fillRect(Math.round(left), Math.round(top), right - Math.round(left), bottom - Math.round(top));
  });
  context.globalAlpha = 1;
}
