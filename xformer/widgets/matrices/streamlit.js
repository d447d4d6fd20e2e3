import { element, pen } from "../shared.js";
import { mounted } from "../streamlit.js";
import { close, land } from "../zoom.js";
import { PredictedMatrices } from "./predictions.js";

class ZoomedCell extends PredictedMatrices { // a cell of an attention matrix lands here, and goes back
  /** @type {DOMRect | null} */ shown = null;

  fit() {
    super.fit();
    const cell = this.cells.get(`${this.at?.name} ${this.at?.r} ${this.at?.c}`);
    if (!cell || !this.data.at) return;
    const box = cell.getBoundingClientRect();
    if (!this.shown) land(() => box);
    this.shown = box;
  }

  destroy() {
    if (this.shown) {
      const picture = element("canvas"), at = pen(picture), matrix = this.matrix(this.at.name);
      [picture.width, picture.height] = [1, 1];
      at.fillStyle = `rgb(${this.look.fill(matrix, matrix.values[this.at.r][this.at.c]).join(" ")})`;
      at.fillRect(0, 0, 1, 1);
      close({ name: "", picture, box: this.shown });
    }
    super.destroy();
  }
}

export default mounted(ZoomedCell, "act");
