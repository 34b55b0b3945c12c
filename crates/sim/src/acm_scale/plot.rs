//! The outcomes as a plot: subnet administration messages and time by number of endpoints.

use std::cmp::Reverse;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::combinators::IntoLogRange;
use plotters::prelude::*;

use super::Outcome;

const SIZE: (u32, u32) = (1000, 420);
const ACM: RGBColor = RGBColor(0x3c, 0x8d, 0x5a);
const SA: RGBColor = RGBColor(0x4a, 0x7f, 0xb5);
const OPENSM: RGBColor = RGBColor(0xc4, 0x5a, 0x3c);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Error = Box<dyn std::error::Error>;

/// A line of a plot: its name, its colour, and its value for an outcome.
struct Line(&'static str, RGBColor, fn(&Outcome) -> f64);

/// Writes the plot to an SVG file. For each size it shows the outcome without loss that has the largest sample.
///
/// # Errors
/// When the file cannot be written.
pub fn plot(outcomes: &[Outcome], file: &Path) -> Result<(), Error> {
    let mut rows: Vec<_> = outcomes.iter().filter(|outcome| outcome.loss_ppm == 0).collect();
    rows.sort_by_key(|outcome| (outcome.endpoints, Reverse(outcome.sample)));
    rows.dedup_by_key(|outcome| outcome.endpoints);
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let (left, right) = area.split_horizontally(SIZE.0 / 2);
    #[expect(clippy::cast_precision_loss, reason = "a place in a plot")]
    let messages = [
        Line("by ACM", ACM, |o| o.administration_per_endpoint * f64::from(o.endpoints)),
        Line("by subnet administration alone", SA, |o| o.by_sa.messages as f64),
    ];
    let time = [
        Line("by ACM", ACM, |o| o.time.as_secs_f64()),
        Line("by rdmux's administration alone", SA, |o| o.by_sa.time[0].as_secs_f64()),
        Line("with OpenSM alone", OPENSM, |o| o.by_sa.time[1].as_secs_f64()),
    ];
    draw(&left, "Datagrams of subnet administration", &rows, &messages)?;
    draw(&right, "Seconds until all have all paths", &rows, &time)?;
    area.present()?;
    Ok(())
}

fn draw(area: &Area<'_>, title: &str, rows: &[&Outcome], lines: &[Line]) -> Result<(), Error> {
    let values = || rows.iter().flat_map(|o| lines.iter().map(|line| (line.2)(o)));
    let low = values().fold(f64::INFINITY, f64::min).max(1e-3);
    let high = values().fold(low * 10.0, f64::max);
    let from = rows.iter().map(|o| o.endpoints).min().unwrap_or(1);
    let to = rows.iter().map(|o| o.endpoints).max().unwrap_or(2).max(from + 1);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(12)
        // The last label is centred on the edge.
        .margin_right(30)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(
            (from..to).log_scale().base(2.0),
            (low / 2.0..high * 2.0).log_scale(),
        )?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("endpoints")
        .x_label_formatter(&|n| n.to_string())
        .y_label_formatter(&|value| format!("{value:e}"))
        .draw()?;
    for Line(name, colour, value) in lines {
        let points: Vec<_> = rows.iter().map(|o| (o.endpoints, value(o))).collect();
        let circles = points.iter().map(|point| Circle::new(*point, 3, colour.filled()));
        chart.draw_series(circles)?;
        let colour = *colour;
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
    }
    chart
        .configure_series_labels()
        .border_style(WHITE)
        .position(SeriesLabelPosition::UpperLeft)
        .draw()?;
    Ok(())
}
