//! The table as a bar chart: each ratio relative to its minimum goal and its aim.
//!
//! Ratios have different directions and sizes. The length of a bar is the factor by which the ratio is better than
//! its minimum goal, on a logarithmic scale: a bar that reaches the line in the middle meets the goal. A mark on each
//! bar's line is the aim.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::figure::{Figure, Met, Ratio};

const WIDTH: i32 = 1000;
const ROW: i32 = 26;
const TOP: i32 = 60;
const BOTTOM: i32 = 34;
/// The ends of the bars' scale: names are to its left, numbers to its right.
const LEFT: i32 = 260;
const RIGHT: i32 = 740;
/// The range of the scale: this many times worse or better than the minimum goal.
const REACH: f64 = 10.0;

const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);
const PALE: RGBColor = RGBColor(0xcc, 0xcc, 0xcc);
const MISSED: RGBColor = RGBColor(0xc4, 0x5a, 0x3c);
const REACHED: RGBColor = RGBColor(0x4a, 0x7f, 0xb5);
const AIMED: RGBColor = RGBColor(0x3c, 0x8d, 0x5a);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Writes the chart to `file`.
pub(super) fn write(rows: &[Figure], file: &Path) -> Result<()> {
    let area = SVGBackend::new(file, size(rows)).into_drawing_area();
    draw(&area, rows).map_err(|e| anyhow!("cannot draw {}: {e}", file.display()))
}

/// Returns the rows with goals; others cannot be drawn on the scale.
fn judged(rows: &[Figure]) -> impl Iterator<Item = &Figure> {
    rows.iter().filter(|f| f.met.is_some())
}

fn size(rows: &[Figure]) -> (u32, u32) {
    let rows = i32::try_from(judged(rows).count()).unwrap_or(0);
    (WIDTH.unsigned_abs(), (TOP + rows * ROW + BOTTOM).unsigned_abs())
}

fn draw(area: &Area<'_>, rows: &[Figure]) -> Result<(), Box<dyn std::error::Error>> {
    area.fill(&WHITE)?;
    let bottom = TOP + i32::try_from(judged(rows).count())? * ROW;
    text(area, "Ratios beside their goals", (LEFT, 16), HPos::Left, 16)?;
    text(area, "worse than \"at least\"", (LEFT, 40), HPos::Left, 12)?;
    text(area, "better, on a logarithmic scale", (RIGHT, 40), HPos::Right, 12)?;
    for times in [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0] {
        let x = place(times);
        let colour = if times == 1.0 { INK } else { PALE };
        area.draw(&PathElement::new([(x, TOP - 6), (x, bottom)], colour))?;
        text(area, &format!("{times}x"), (x, bottom + 12), HPos::Center, 11)?;
    }
    for (n, figure) in judged(rows).enumerate() {
        bar(area, figure, TOP + i32::try_from(n)? * ROW + ROW / 2)?;
    }
    area.present()?;
    Ok(())
}

fn bar(area: &Area<'_>, f: &Figure, y: i32) -> Result<(), Box<dyn std::error::Error>> {
    let (Some(at_least), Some(aim), Some(beyond)) = (f.at_least, f.aim, f.aim_beyond()) else {
        return Ok(());
    };
    let colour = match f.met {
        Some(Met::Aim) => AIMED,
        Some(Met::AtLeast) => REACHED,
        _ => MISSED,
    };
    let (zero, x) = (place(1.0), place(f.times_better_than(at_least)));
    let corners = [(zero.min(x), y - ROW / 3), (zero.max(x), y + ROW / 3)];
    area.draw(&Rectangle::new(corners, colour.filled()))?;
    let mark = place(beyond);
    area.draw(&PathElement::new(
        [(mark, y - ROW / 2 + 2), (mark, y + ROW / 2 - 2)],
        INK.stroke_width(2),
    ))?;
    text(area, f.what, (LEFT - 10, y), HPos::Right, 12)?;
    let sign = if f.direction == Ratio::Less { "≤" } else { "≥" };
    let (ratio, at_least, aim) = (f.show(f.ratio), f.show(at_least), f.show(aim));
    let figures = format!("{ratio}  ({sign} {at_least}, aim {aim})");
    text(area, &figures, (RIGHT + 10, y), HPos::Left, 12)
}

fn text(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    side: HPos,
    size: i32,
) -> Result<(), Box<dyn std::error::Error>> {
    let style = ("sans-serif", size).into_font().color(&INK).pos(Pos::new(side, VPos::Center));
    Ok(area.draw(&Text::new(text, at, style))?)
}

/// Returns the position of a factor on the scale. Factors beyond its ends are drawn at the end.
#[expect(clippy::cast_possible_truncation, reason = "it is within the scale")]
fn place(times: f64) -> i32 {
    let share = (times.max(f64::MIN_POSITIVE).log(REACH).clamp(-1.0, 1.0) + 1.0) / 2.0;
    LEFT + (f64::from(RIGHT - LEFT) * share).round() as i32
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::figures;
    use super::*;

    #[test]
    fn chart_clamps_ratios_to_its_edges() {
        assert_eq!([0.001, 0.1, 1.0, 10.0, 99.0].map(place), [LEFT, LEFT, 500, RIGHT, RIGHT]);
        assert!(place(f64::NAN) >= LEFT);
    }

    #[test]
    fn the_chart_has_a_bar_for_each_row_with_goals() {
        let mut svg = String::new();
        let rows = figures();
        let area = SVGBackend::with_string(&mut svg, size(&rows)).into_drawing_area();
        draw(&area, &rows).unwrap();
        drop(area);
        assert!(svg.starts_with("<svg"), "{svg}");
        assert!(svg.contains("ib_send_lat 8 B, same host"), "{svg}");
        assert!(svg.contains("2.00  (≤ 1.50, aim 0.90)"), "{svg}");
        assert!(!svg.contains("two hosts"), "a row without goals is drawn: {svg}");
        // The background, and three bars.
        assert_eq!(svg.matches("<rect").count(), 4, "{svg}");
    }
}
