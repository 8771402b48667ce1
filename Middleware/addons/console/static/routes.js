/**
 * One line for each page. A page that is not built has no line, so that nothing in the menu leads nowhere.
 *
 * `path`: the hash after `#/`; `*` stands for one segment, `**` for all that follow. `name`: the link in the
 * navigation, in the order of these lines. `role`: the least role that may see it. `page`: its module.
 */

/** @typedef {{path: string, name?: string, role?: "own" | "all" | "operator", page: string}} Route */

/** @type {Route[]} */
export const ROUTES = [
  { path: "runs", name: "Runs", page: "runs" },
  { path: "runs/*", page: "run" },
  { path: "runs/*/test", page: "test" },
  { path: "again/*/*", page: "again" },
  { path: "compare/*/*", page: "compare" },
  { path: "file", page: "file" },
  { path: "workflows", name: "Workflows", role: "all", page: "workflows/list" },
  { path: "workflows/**", role: "all", page: "workflows/one" },
  { path: "playground", name: "Playground", page: "playground" },
  { path: "memory", name: "Memory", page: "memory/list" },
  { path: "memory/*", page: "memory/discussion" },
  { path: "backends", name: "Backends", role: "all", page: "backends" },
  { path: "config", name: "Configuration", role: "operator", page: "config" },
  { path: "settings", name: "Settings", role: "operator", page: "settings" },
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
