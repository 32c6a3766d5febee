"""The instructor's tools. A student's checkout has no such folder, and nothing in the student's half needs it."""
