import { mounted } from "../streamlit.js";
import { boxIn, grow, land, SOFTLY } from "../zoom.js";
import { Scene } from "./scene.js";

class ZoomingScene extends Scene { // a clicked head grows into the widget that shows it, and lands here again
  hasLanded = false;

  fit() {
    super.fit();
    if (this.hasLanded || !this.place) return;
    this.hasLanded = true;
    land((name) => {
      const head = this.regions.find(({ target }) => target?.head && target.head === name.split(".", 2).join("."));
      return head ? boxIn(this.canvas, head) : null;
    });
  }

  click(region) {
    if (region.part) {
      if (this.data.isRecorded) return; // not before the model is there
      grow({ name: region.target.head, picture: this.look.picture(region.part, region.head), box: boxIn(this.canvas, region) }, this.canvas.getBoundingClientRect());
      this.canvas.animate({ opacity: [1, 0.2, 0.2, 1], offset: [0, 0.1, 0.9, 1] }, { ...SOFTLY, duration: 10 * SOFTLY.duration });
    }
    super.click(region);
  }
}

export default mounted(ZoomingScene, "act");
