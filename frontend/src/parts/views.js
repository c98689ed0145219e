// The parts of a run's page, in their order; those that this run has nothing for are left out.

export const hasActivations = (model) =>
  model.mapNames.some((name) => name.startsWith("act_") && model.maps.get(name).width);

export const hasFlow = (model) => Boolean(model.maps.get("grad_rms")?.width) && model.flow.nodes.length > 0;

const PARTS = [
  ["health", () => true],
  ["findings", (model) => model.findings.length > 0],
  ["loss", (model) => model.scalars.length + model.learning_rates.length > 0],
  ["ranks", (model) => Boolean(model.ranks)],
  ["map", () => true],
  ["flow", hasFlow],
  ["analyses", (model) => Boolean(model.analyses)],
  ["updates", (model) => Boolean(model.updates)],
  ["activations", hasActivations],
  ["weights", (model) => model.ridges.length > 0],
  ["recording", () => true],
];

export function viewsOf(model) {
  return PARTS.filter(([, there]) => there(model)).map(([name]) => name);
}
