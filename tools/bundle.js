// Bundles each entry point of the widgets with its imports into xformer/widgets/bundles, which is committed. The first line of a
// bundle has the hash of its own sources, which a test checks.

import { createHash } from "node:crypto";
import { readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { buildSync } from "esbuild";

const WIDGETS = fileURLToPath(new URL("../xformer/widgets/", import.meta.url));
const HOSTS = ["streamlit.js", "streamlit_message.js", "notebook.js", "page.js"];

rmSync(join(WIDGETS, "bundles"), { recursive: true, force: true });
for (const folder of readdirSync(WIDGETS, { withFileTypes: true }).filter((entry) => entry.isDirectory())) {
  for (const host of readdirSync(join(WIDGETS, folder.name)).filter((file) => HOSTS.includes(file))) {
    const options = /** @type {import("esbuild").BuildOptions} */ ({
      absWorkingDir: WIDGETS,
      entryPoints: [`${folder.name}/${host}`],
      outbase: ".",
      outdir: "bundles",
      bundle: true,
      charset: "utf8",
      format: "esm",
      minifyWhitespace: true,
      minifySyntax: true,
    });
    const { metafile } = buildSync({ ...options, metafile: true, write: false });
    const hash = createHash("sha256");
    for (const path of Object.keys(metafile?.inputs ?? {}).sort()) hash.update(readFileSync(join(WIDGETS, path)));
    buildSync({ ...options, banner: { js: `// Made by make bundle. SHA-256 of its sources: ${hash.digest("hex")}` } });
  }
}
