// The stage view, for a projector: only the picture, which fills the window, with large type. Key F and the Present menu turn it on
// and off, Escape off. The screen is drawn in a frame of `WIDTH` pixels that is enlarged to the window, so that all pictures keep
// their layout; stage_view.css hides the rest. It survives a reload and a change of screen.
if (!window.xformerStageView) {
  window.xformerStageView = true;
  const NAME = "xformer_stage_view", WIDTH = 1100, TYPED = "input, textarea, select, [contenteditable]";
  const isInside = window.name === NAME && parent !== window;
  const fit = (frame) => {
    const scale = Math.max(1, innerWidth / WIDTH);
    Object.assign(frame.style, { width: `${innerWidth / scale}px`, height: `${innerHeight / scale}px`, transform: `scale(${scale})` });
    frame.contentWindow.xformerScale = scale;
  };
  const open = () => {
    const frame = document.createElement("iframe");
    Object.assign(frame, { name: NAME, title: "Stage view", className: NAME, src: location.href });
    document.body.append(frame);
    fit(frame);
    frame.onload = () => { // also of a lesson, whose page has no script of the app
      fit(frame);
      frame.contentWindow.addEventListener("keydown", press);
      frame.contentWindow.focus();
    };
    sessionStorage.setItem(NAME, "on");
  };
  const close = (frame) => {
    sessionStorage.removeItem(NAME);
    const { href } = frame.contentWindow.location;
    frame.remove();
    if (href !== location.href) location.assign(href); // what was shown last
  };
  const toggle = () => {
    const outside = isInside ? parent : window, frame = outside.document.querySelector(`iframe.${NAME}`);
    if (frame) outside.dispatchEvent(new Event(NAME));
    else open();
  };
  const press = (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.composedPath()[0].matches?.(TYPED)) return;
    if (event.key === "f" || event.key === "F" || (event.key === "Escape" && document.querySelector(`iframe.${NAME}`))) toggle();
  };
  addEventListener(NAME, () => close(document.querySelector(`iframe.${NAME}`)));
  addEventListener("resize", () => { const frame = document.querySelector(`iframe.${NAME}`); if (frame) fit(frame); });
  if (!isInside) addEventListener("keydown", press); // the page outside hears the keys of its frame
  addEventListener("click", (event) => { if (event.target.closest?.(".stage-view-switch")) toggle(); });
  document.documentElement.toggleAttribute("data-stage-view", isInside);
  if (!isInside && sessionStorage.getItem(NAME)) open();
}
