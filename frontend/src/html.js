// htm bound to preact: markup as tagged templates, every value escaped by construction.

import htm from "htm";
import { h } from "preact";

export const html = htm.bind(h);
