/** The tree of the configuration's files, each with the number of its findings. */
import { html, useEffect, useMemo, useState } from "../../html.js";
import { counted } from "../../parts/format.js";
import { Tree } from "../../parts/tree.js";
import { navigate } from "../../routes.js";
import { drafts, fileAddress } from "./data.js";

const ROW = 24;

/**
 * @param {{files: {path: string, title: string}[], open: string | null, counts: Map<string, {errors: number, all: number, words: string}>}} props
 */
export function Files({ files, open, counts }) {
  const [expanded, setExpanded] = useState(() => new Set(open ? above(open) : []));
  const [chosen, setChosen] = useState(open);
  useEffect(() => {
    if (!open) return;
    setChosen(open);
    setExpanded((old) => new Set([...old, ...above(open)]));
  }, [open]);
  const folders = useMemo(() => tree(files), [files]);
  const rows = [];
  const add = (folder, level) => {
    for (const [name, inside] of folder.folders) {
      const isOpen = expanded.has(inside.path);
      const wrong = [...counts].some(([file, { errors }]) => errors && file.startsWith(`${inside.path}/`));
      rows.push({ key: inside.path, level, expanded: isOpen, label: `${name}, ${counted(inside.count, "file")}${wrong && !isOpen ? ", with errors" : ""}`,
        content: html`<span>${name}</span><span class="note num">${inside.count}</span>${wrong && !isOpen && html`<span class="wrong" aria-hidden="true">✕</span>`}` });
      if (isOpen) add(inside, level + 1);
    }
    for (const file of folder.files) {
      const name = file.path.split("/").at(-1);
      const count = counts.get(file.path);
      const unsaved = drafts.has(file.path);
      rows.push({ key: file.path, level, label: [name, count?.words, unsaved && "unsaved"].filter(Boolean).join(", "),
        content: html`<span class="name" title=${file.title}>${name}</span>${unsaved && html`<span aria-hidden="true">●</span>`}
          ${count?.words && html`<span class=${count.errors ? "wrong num" : "note num"}>(${count.all})</span>`}` });
    }
  };
  add(folders, 1);
  const toggle = (key, on) => setExpanded((old) => new Set(on ? [...old, key] : [...old].filter((one) => one !== key)));
  const choose = (key, clicked) => {
    setChosen(key);
    // Arrow keys pass many files: the way back leads past them.
    if (files.some((file) => file.path === key)) navigate(fileAddress(key), { replace: !clicked });
    else if (clicked) toggle(key, !expanded.has(key));
  };
  return html`<div class="files"><${Tree} label="Files" rows=${rows} chosen=${chosen} rowHeight=${ROW} onChoose=${choose} onToggle=${toggle} /></div>`;
}

/** @param {string} path @returns {string[]} the folders around it */
function above(path) {
  const parts = path.split("/");
  return parts.slice(1).map((_, n) => parts.slice(0, n + 1).join("/"));
}

/** @param {File[]} files */
function tree(files) {
  const root = { path: "", folders: new Map(), files: [], count: 0 };
  for (const file of files) {
    let folder = root;
    for (const path of above(file.path)) {
      const name = path.split("/").at(-1);
      if (!folder.folders.has(name)) folder.folders.set(name, { path, folders: new Map(), files: [], count: 0 });
      folder = folder.folders.get(name);
      folder.count += 1;
    }
    folder.files.push(file);
  }
  return root;
}
