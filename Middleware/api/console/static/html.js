/** What every page imports: templates and hooks of preact, under one name. */
import { h, render, Fragment } from "preact";
import htm from "htm";

/** Make elements from a template. Values become text or properties, never markup. */
export const html = htm.bind(h);
export { h, render, Fragment };
export { useCallback, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
