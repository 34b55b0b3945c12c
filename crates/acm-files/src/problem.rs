//! Problems of a file, line by line.

use std::fmt;

/// The number of problems that a report stores; further ones are only counted.
pub const MAX_PROBLEMS: usize = 256;

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The line is used, but perhaps not as intended, or ibacm interprets it differently, or its port does not exist yet.
    Warning,
    /// The line is not used.
    Error,
}

/// A problem with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, as the caller named it.
    pub file: String,
    /// The line, from 1 on; 0 is the file as a whole.
    pub line: u32,
    /// The severity.
    pub severity: Severity,
    /// The problem, its reason, and what is used instead.
    pub what: String,
}

/// Formats it as compilers do: `FILE:LINE: error: WHAT`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line != 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": {}: {}", self.severity, self.what)
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// All problems of one or several files, in the order of their lines.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Report {
    problems: Vec<Problem>,
    left_out: [usize; 2],
}

impl Report {
    /// Returns the problems, [`MAX_PROBLEMS`] at most.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns the number of errors, including those not stored.
    pub fn errors(&self) -> usize {
        self.count(Severity::Error)
    }

    /// Returns the number of warnings, including those not stored.
    pub fn warnings(&self) -> usize {
        self.count(Severity::Warning)
    }

    /// Returns whether the report has no problems.
    pub fn is_clean(&self) -> bool {
        self.errors() + self.warnings() == 0
    }

    /// Adds a problem.
    pub fn push(&mut self, problem: Problem) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        } else {
            self.left_out[problem.severity as usize] += 1;
        }
    }

    /// Adds the problems of another file.
    pub fn append(&mut self, other: Self) {
        other.problems.into_iter().for_each(|problem| self.push(problem));
        for (all, more) in self.left_out.iter_mut().zip(other.left_out) {
            *all += more;
        }
    }

    fn count(&self, severity: Severity) -> usize {
        let kept = self.problems.iter().filter(|problem| problem.severity == severity);
        kept.count() + self.left_out[severity as usize]
    }
}

/// Formats one line for each problem, and one for those not stored.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.problems.iter().try_for_each(|problem| writeln!(f, "{problem}"))?;
        match self.left_out.iter().sum::<usize>() {
            0 => Ok(()),
            more => writeln!(f, "and {more} more"),
        }
    }
}

/// Adds the problems of a file to a report.
#[derive(Debug)]
pub(crate) struct Reporter<'a> {
    file: &'a str,
    report: Report,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(file: &'a str) -> Self {
        Self { file, report: Report::default() }
    }

    pub(crate) fn error(&mut self, line: u32, what: impl Into<String>) {
        self.push(line, Severity::Error, what.into());
    }

    pub(crate) fn warning(&mut self, line: u32, what: impl Into<String>) {
        self.push(line, Severity::Warning, what.into());
    }

    pub(crate) fn finish(self) -> Report {
        self.report
    }

    fn push(&mut self, line: u32, severity: Severity, what: String) {
        self.report.push(Problem { file: self.file.to_owned(), line, severity, what });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_shown_with_file_and_line_and_are_bounded() {
        let mut reporter = Reporter::new("opts");
        (1..=300).for_each(|line| reporter.error(line, "bad"));
        reporter.warning(0, "odd");
        let report = reporter.finish();
        assert_eq!((report.errors(), report.warnings(), report.is_clean()), (300, 1, false));
        assert_eq!(report.problems().len(), MAX_PROBLEMS);
        let text = report.to_string();
        assert!(text.starts_with("opts:1: error: bad\n"), "{text}");
        assert!(text.ends_with("and 45 more\n"), "{text}");
        let whole = Problem { line: 0, ..report.problems()[0].clone() };
        assert_eq!(whole.to_string(), "opts: error: bad");
        let mut both = report.clone();
        both.append(report);
        assert_eq!((both.errors(), both.warnings()), (600, 2));
    }
}
