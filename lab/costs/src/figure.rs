//! A number with its spread.

use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

/// A repeated measurement: the median and the spread, mostly in nanoseconds (the key says).
///
/// In a file it is a table, `{ p10 = 4.9, p50 = 5.0, p90 = 6.1, p99 = 20.0 }`, or a number alone,
/// which has no spread: all percentiles are that number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Least value that a tenth of the samples don't exceed.
    pub p10: f64,
    /// The median.
    pub p50: f64,
    /// Least value that nine tenths of the samples don't exceed.
    pub p90: f64,
    /// Least value that 99 of 100 samples don't exceed. `None` for fewer than 100 samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
}

impl Figure {
    /// Creates a figure without spread.
    pub const fn exactly(value: f64) -> Figure {
        Figure { p10: value, p50: value, p90: value, p99: None }
    }

    /// Returns the figure of samples in any order, by nearest rank, rounded to three decimals.
    /// `None` if there are none. A number that isn't finite counts as largest. One below 0 counts
    /// as 0: the clock's cost was taken off it.
    pub fn of(samples: &[f64]) -> Option<Figure> {
        let mut sorted: Vec<f64> = samples
            .iter()
            .map(|value| if value.is_finite() { value.max(0.0) } else { f64::MAX })
            .collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let rank = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).map(|value| (value * 1000.0).round() / 1000.0)
        };
        let p99 = if samples.len() < 100 { None } else { rank(99) };
        Some(Figure { p10: rank(10)?, p50: rank(50)?, p90: rank(90)?, p99 })
    }

    fn check(self) -> Result<Figure, String> {
        let all = [Some(self.p10), Some(self.p50), Some(self.p90), self.p99];
        if let Some(wrong) =
            all.into_iter().flatten().find(|value| !value.is_finite() || *value < 0.0)
        {
            return Err(format!("{wrong} is not a cost: write a number of at least 0"));
        }
        let all: Vec<f64> = all.into_iter().flatten().collect();
        match all.is_sorted() {
            true => Ok(self),
            false => Err("the percentiles must rise from p10 to p50, p90 and p99".to_owned()),
        }
    }
}

impl<'de> Deserialize<'de> for Figure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Figure, D::Error> {
        deserializer.deserialize_any(NumberOrTable)
    }
}

struct NumberOrTable;

impl<'de> Visitor<'de> for NumberOrTable {
    type Value = Figure;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of at least 0, or { p10, p50, p90 }")
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Figure, E> {
        Figure::exactly(value).check().map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Figure, E> {
        self.visit_f64(value as f64)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Figure, E> {
        self.visit_f64(value as f64)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Figure, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            p50: f64,
            p10: Option<f64>,
            p90: Option<f64>,
            p99: Option<f64>,
        }
        let table = Table::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
        let figure = Figure {
            p10: table.p10.unwrap_or(table.p50),
            p50: table.p50,
            p90: table.p90.unwrap_or(table.p50),
            p99: table.p99,
        };
        figure.check().map_err(A::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_by_nearest_rank() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let figure = Figure::of(&hundred).unwrap();
        assert_eq!(figure, Figure { p10: 10.0, p50: 50.0, p90: 90.0, p99: Some(99.0) });
        assert_eq!(Figure::of(&[7.0]), Some(Figure::exactly(7.0)));
        assert_eq!(Figure::of(&[]), None);
        assert_eq!(Figure::of(&[-1.0, 0.000_4]), Some(Figure::exactly(0.0)));
        assert_eq!(Figure::of(&[1.0; 99]).unwrap().p99, None, "too few to tell a tail");
    }
}
