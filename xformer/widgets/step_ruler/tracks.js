// Draws how undecided each player is and how far apart each pair is, over the same columns as the lanes.

const TRACK = 62, LOW_TRACK = 48, PAD = 8;
const WORDS = { entropy: "how undecided each player is", KL: "how far apart what they believe is (Kullback–Leibler divergence of the first from the second)" };

class Tracks {
  drawTracks(columns) {
    const { data } = this;
    this.tracks.replaceChildren();
    if (!data.detail) return;
    const bits = Math.max(0.1, ...data.players.flatMap((player) => player.entropy));
    this.tracks.append(this.track("entropy", "bits", bits, columns, data.players.map((player, index) => ({
      values: player.entropy, hue: this.hue(index), width: 5.5 - 1.3 * index,
    }))));
    const nats = Math.max(0.1, ...data.pairs.flatMap((pair) => pair.kl.filter((value) => value !== null)));
    const row = this.track("KL", "nats", nats, columns, data.pairs.map((pair, index) => ({
      values: pair.kl, hue: this.pairHue(index), width: 2.5, dash: ["", "8 3", "3 3", "8 3 2 3", "2 2", "12 4"][index % 6],
    })));
    const key = make("span", "pairs");
    data.pairs.forEach((pair, index) => {
      const one = make("span", "pair", `${letter(pair.one)}‖${letter(pair.other)}`);
      one.style.color = this.pairHue(index);
      key.append(one);
    });
    row.firstChild.append(key);
    this.tracks.append(row);
  }

  track(name, unit, top, columns, lines) {
    const row = this.lane(name, []), width = columns * this.cell, tall = this.isLow ? LOW_TRACK : TRACK;
    row.classList.add("track");
    row.style.height = `${tall}px`;
    row.firstChild.title = `${WORDS[name]}, in ${unit}, from 0 to ${top.toPrecision(3)}`;
    row.firstChild.append(make("span", "unit", unit));
    const y = (value) => tall - PAD - (tall - 2 * PAD) * (value / top), x = (step) => (step + 0.5) * this.cell;
    const svg = shape("svg", { width, height: tall, "aria-hidden": "true" });
    for (const value of [0, top]) svg.append(shape("line", { x1: 0, x2: this.steps * this.cell, y1: y(value), y2: y(value), class: "grid" }));
    for (const { values, hue, width: wide, dash } of lines) {
      let path = "";
      values.forEach((value, step) => { if (value !== null) path += `${path && values[step - 1] !== null ? "L" : "M"}${x(step)} ${y(value)}`; });
      const line = shape("path", { d: path, fill: "none", "stroke-width": wide, "stroke-linejoin": "round" });
      line.style.stroke = hue;
      if (dash) line.setAttribute("stroke-dasharray", dash);
      svg.append(line);
      values.forEach((value, step) => {
        const mark = value === null ? shape("text", { x: x(step), y: PAD + 6, "text-anchor": "middle" }) : shape("circle", { cx: x(step), cy: y(value), r: wide / 2 + 1.2 });
        if (value === null) mark.textContent = "∞";
        mark.style.fill = hue;
        svg.append(mark);
      });
    }
    const ends = make("span", "ends");
    ends.append(make("span", "", top >= 10 ? top.toFixed(0) : top.toPrecision(2)), make("span", "", "0"));
    row.firstChild.append(ends);
    row.lastChild.append(svg);
    return row;
  }
}
