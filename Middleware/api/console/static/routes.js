/**
 * One line for each page. A page that is not built has no line, so that nothing in the menu leads nowhere.
 *
 * `path`: the hash after `#/`; `*` stands for one segment, `**` for all that follow. `name`: the link in the
 * navigation, in the order of these lines. `role`: the least role that may see it.
 */

/** @typedef {{path: string, name?: string, role: "own" | "all" | "operator", load: () => Promise<{default: Function}>}} Route */

/** @type {Route[]} */
export const ROUTES = [
  { path: "runs", name: "Runs", role: "own", load: () => import("./pages/runs.js") },
  { path: "runs/*", role: "own", load: () => import("./pages/run.js") },
  { path: "runs/*/test", role: "own", load: () => import("./pages/test.js") },
  { path: "again/*/*", role: "own", load: () => import("./pages/again.js") },
  { path: "compare/*/*", role: "own", load: () => import("./pages/compare.js") },
  { path: "file", role: "own", load: () => import("./pages/file.js") },
  { path: "workflows", name: "Workflows", role: "all", load: () => import("./pages/workflows.js") },
  { path: "workflows/**", role: "all", load: () => import("./pages/workflows.js") },
  { path: "playground", name: "Playground", role: "own", load: () => import("./pages/playground.js") },
  { path: "memory", name: "Memory", role: "own", load: () => import("./pages/memory.js") },
  { path: "memory/*", role: "own", load: () => import("./pages/memory.js") },
  { path: "backends", name: "Backends", role: "all", load: () => import("./pages/backends.js") },
  { path: "config", name: "Configuration", role: "operator", load: () => import("./pages/config.js") },
  { path: "settings", name: "Settings", role: "operator", load: () => import("./pages/settings.js") },
];

/**
 * @param {string} hash of the address
 * @returns {{route: Route | null, path: string[], query: URLSearchParams}} `path`: what the stars stand for
 */
export function resolve(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const segments = path.split("/").filter(Boolean).map(decode);
  for (const route of ROUTES) {
    const rest = match(route.path.split("/"), segments);
    if (rest) return { route, path: rest, query: new URLSearchParams(query) };
  }
  return { route: null, path: segments, query: new URLSearchParams(query) };
}

/** @param {string} path such as `settings` @returns {boolean} whether that page is built */
export function hasPage(path) {
  return ROUTES.some((route) => route.path === path);
}

/** @param {string} hash @param {{replace?: boolean}} [how] */
export function navigate(hash, { replace = false } = {}) {
  if (replace) {
    history.replaceState(history.state, "", hash);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = hash;
  }
}

function match(pattern, segments) {
  const found = [];
  for (const [index, part] of pattern.entries()) {
    if (part === "**") return segments.length > index ? [...found, ...segments.slice(index)] : null;
    if (index >= segments.length) return null;
    if (part === "*") found.push(segments[index]);
    else if (part !== segments[index]) return null;
  }
  return pattern.length === segments.length ? found : null;
}

function decode(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}
