"""What comes out of grading: a report for each student, a page for the class, grades.csv, files that look alike.

Student reports hold the visible checks' messages and the points of the hidden ones, nothing else of them. All text
that a student had a hand in is escaped, and the pages allow no script.
"""
