// Chooses a head, and tells the server what is chosen once the hand is still.

class Choosing {
  choose(layer, head) { // the arcs follow, unless several heads are being compared
    if (this.active.size > 1) this.active.add(head); else this.active = new Set([head]);
    this.pick(layer, head);
  }

  pick(layer, head) {
    const before = this.layer, next = this.patterns.layers[layer];
    head = Math.min(head, next.heads - 1);
    this.active = new Set([...this.active].filter((h) => h < next.heads).concat(head));
    this.current = [layer, head];
    if (before.queryLabels !== next.queryLabels || before.keyLabels !== next.keyLabels) this.forget(); // other tokens
    this.drawHead();
    this.say(`${next.title}, ${this.headName(head)}.`);
    this.report();
  }

  choice() { // as the server is told
    const [layer, head] = this.current, at = this.lock;
    const arcs = this.active.size > 1 ? [...this.active] : []; // one alone is the chosen head
    return JSON.stringify({ layer, head, query: at ? at.query : null, key: at && at.kind !== "token" ? at.key : null,
      scale: this.scale, shown: this.show, arcs });
  }

  report() { // to the server: the first at once, of a quick succession the last, once the hand is still
    clearTimeout(this.timer);
    const isFirst = performance.now() - (this.asked ?? -Infinity) > 300;
    this.asked = performance.now();
    this.timer = setTimeout(() => {
      const choice = this.choice();
      if (choice === this.reported) return;
      this.reported = choice;
      this.send(JSON.parse(choice));
    }, isFirst ? 0 : 80);
  }
}
