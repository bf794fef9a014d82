/** The page of several ranks begins here; the pages of its ranks are in frames, which run the viewer. */

import { showFailure } from "../dom.ts";
import { beginWorld } from "./page.ts";

beginWorld().catch(showFailure);
