// Builds the page into coach/service/page/static, or into the folder that is named: the same bytes each time.
import { build } from "esbuild";
import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const out = path.resolve(process.argv[2] ?? path.join(here, "../coach/service/page/static"));
await mkdir(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  outdir: out,
});
await copyFile(path.join(here, "src/index.html"), path.join(out, "index.html"));
await copyFile(path.join(here, "src/icon.svg"), path.join(out, "icon.svg"));
const licences = [];
for (const name of ["preact", "uplot"]) {
  const folder = path.join(here, "node_modules", name);
  const { version } = JSON.parse(await readFile(path.join(folder, "package.json"), "utf8"));
  licences.push(`${name} ${version}\n\n${(await readFile(path.join(folder, "LICENSE"), "utf8")).trim()}\n`);
}
await writeFile(path.join(out, "licences.txt"), licences.join("\n\n"));
