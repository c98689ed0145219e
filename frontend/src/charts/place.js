// Where the nodes of the flow network stand: ranks run like lines of text, so deep networks fit.

const LEFT = 14;
export const NODE = { width: 108, height: 34, gapX: 26, gapY: 14, lineGap: 30 };

/** {boxes: [{x, y}], width, height, perLine}: ranks from left to right, wrapped at `width`. */
export function placed(flow, width) {
  const least = NODE.width + NODE.gapX;
  const ranks = 1 + Math.max(0, ...flow.nodes.map((node) => node.rank));
  const perLine = Math.max(1, Math.min(ranks, Math.floor((width - LEFT - 12 + NODE.gapX) / least)));
  // Full lines fill the width; a short network stays together.
  const pitch = ranks > perLine && perLine > 1 ? (width - LEFT - 12 - NODE.width) / (perLine - 1) : least;
  const lines = Math.ceil(ranks / perLine);
  const lanes = new Array(lines).fill(1);
  for (const node of flow.nodes) {
    const line = Math.floor(node.rank / perLine);
    lanes[line] = Math.max(lanes[line], node.lane + 1);
  }
  const tops = [NODE.lineGap];
  for (const count of lanes) tops.push(tops.at(-1) + count * (NODE.height + NODE.gapY) + NODE.lineGap);
  const boxes = flow.nodes.map((node) => ({
    x: LEFT + (node.rank % perLine) * pitch,
    y: tops[Math.floor(node.rank / perLine)] + node.lane * (NODE.height + NODE.gapY),
    line: Math.floor(node.rank / perLine),
  }));
  return { boxes, width: Math.max(LEFT + 12 + (perLine - 1) * pitch + NODE.width, 160), height: tops.at(-1) - NODE.lineGap + 4, perLine };
}

/** A curve between two boxes: straight on to the neighbour, an arch over those it skips. */
export function curve(from, to, skips) {
  const [x1, y1] = [from.x + NODE.width, from.y + NODE.height / 2];
  const [x2, y2] = [to.x, to.y + NODE.height / 2];
  if (from.line !== to.line) {
    const middle = to.y - NODE.lineGap / 2;
    return `M${x1} ${y1} h8 V${middle} H${x2 - 9} V${y2} H${x2}`;
  }
  if (skips) {
    const top = Math.min(from.y, to.y) - NODE.lineGap * 0.7;
    const [a, b] = [from.x + NODE.width * 0.75, to.x + NODE.width * 0.25];
    return `M${a} ${from.y} C${a} ${top} ${b} ${top} ${b} ${to.y}`;
  }
  const bend = Math.max(12, (x2 - x1) / 2);
  return `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}
