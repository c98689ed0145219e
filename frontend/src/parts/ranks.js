export function Ranks() { return null; }
