// Keeps what the pointer is on, and what a click has locked.

class Pointing {
  setThumb(thumb) {
    if (thumb === this.thumb) return;
    this.thumb = thumb;
    this.later();
  }

  setHover(focus) {
    const a = this.hover, same = a === focus || (a && focus && a.query === focus.query && a.key === focus.key && a.kind === focus.kind);
    if (same) return;
    this.hover = focus;
    if (!this.lock) this.later();
  }

  later() { // one repaint a frame, however many events
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => { this.frame = 0; this.drawFocus(); });
  }

  toggleLock(focus) {
    const a = this.lock;
    if (!focus) return;
    this.setLock(a && a.query === focus.query && a.key === focus.key && a.kind === focus.kind ? null : focus);
  }

  setLock(focus) {
    if (!focus && !this.lock) return;
    this.lock = focus;
    this.drawFocus();
    this.revealChips();
    this.say(focus ? `Locked. ${this.spoken}` : "Unlocked.");
    this.report();
  }

  forget() {
    const had = this.lock;
    this.hover = this.lock = null;
    if (had) this.report();
  }
}
