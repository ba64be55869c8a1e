"""Pictures of a timeline: a Gantt chart (PNG) and a Chrome/Perfetto trace (JSON)."""
