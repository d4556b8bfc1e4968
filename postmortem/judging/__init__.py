"""From a run to its report: detectors, then causes, then the verdict. No paths, no replay."""
