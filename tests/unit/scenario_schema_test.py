"""The JSON Schema accepts the shipped scenarios and refuses what the program refuses.

    scenario_schema_test.py SCHEMA SCENARIO...
"""

import copy
import json
import sys

import jsonschema


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def changed(scenario, change):
    document = copy.deepcopy(scenario)
    change(document)
    return document


BAD = {
    "unknown key": lambda s: s["model"].update(layer=1),
    "unknown key in a run": lambda s: s["runs"][0].update(group=1),
    "missing key": lambda s: s["model"].pop("heads"),
    "text for a number": lambda s: s["model"].update(layers="4"),
    "fraction": lambda s: s["model"].update(layers=4.5),
    "negative": lambda s: s["model"].update(layers=-1),
    "huge": lambda s: s["model"].update(layers=1e30),
    "null": lambda s: s["model"].update(layers=None),
    "no runs": lambda s: s.update(runs=[]),
    "two data sources": lambda s: s.update(data={"text_file": "a", "synthetic": {}}),
    "no data source": lambda s: s.update(data={}),
    "zero bandwidth": lambda s: s.update(transport={"link": {"bandwidth_bits_per_s": 0}}),
    "sgd with betas": lambda s: s.update(optimizer={"name": "sgd", "learning_rate": 0.1, "beta1": 0.9}),
    "sleep without length": lambda s: s.update(disturbances=[{"kind": "sleep", "rank": 0}]),
    "dump of nothing": lambda s: s.update(dump={"step": 0}),
    "ratio of losses": lambda s: s.update(expect=[{"metric": "loss", "of": "a", "over": "b", "at_least": 1}]),
}


def main(schema_path, scenario_paths):
    schema = load(schema_path)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    bad = []
    for path in scenario_paths:
        bad += [f"{path}: {error.message}" for error in validator.iter_errors(load(path))]
    for name, change in BAD.items():
        if validator.is_valid(changed(load(scenario_paths[0]), change)):
            bad.append(f"the schema accepts: {name}")
    print("\n".join(bad) if bad else f"{len(scenario_paths)} scenarios valid, {len(BAD)} faults refused")
    return 1 if bad or not scenario_paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
