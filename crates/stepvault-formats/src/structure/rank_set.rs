//! Sets of files that are written once per rank: which of them exist and which are missing.
//!
//! # Blind spots
//!
//! If the file names do not contain the world size, a loss of the highest ranks is not detected. To detect it,
//! compare with a configuration that gives the size, with another set of the same step, or with the previous step.

use std::collections::BTreeSet;

use stepvault_core::words;

use super::text::shown;

/// The maximum number of missing files that are named.
const NAMED: usize = 3;

/// The pattern of the names of a set: fixed text with `{rank}` once, and `{world}` at most once, each of which stands
/// for digits (`rng_state_{rank}.pth`, `model_world_size_{world}_rank_{rank}.pt`, `process_{rank}-of-{world}.json`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankPattern {
    pieces: Vec<Piece>,
    first_rank: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Rank,
    World,
}

/// A number in a name, and how many digits it has.
type Number = (u64, usize);

impl RankPattern {
    /// Returns a pattern whose ranks count from `first_rank`: 0, or 1 for shards. Returns `None` if the text is not a
    /// pattern.
    pub fn new(text: &str, first_rank: u64) -> Option<Self> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}')?;
            let piece = match name {
                "rank" => Piece::Rank,
                "world" => Piece::World,
                _ => return None,
            };
            // Adjacent numbers could not be separated.
            let joined = before.is_empty() && !pieces.is_empty();
            if joined || pieces.contains(&piece) {
                return None;
            }
            pieces.extend([Piece::Text(before.to_owned()), piece]);
            rest = after;
        }
        pieces.push(Piece::Text(rest.to_owned()));
        pieces.contains(&Piece::Rank).then_some(Self { pieces, first_rank })
    }

    /// Returns the files of the set that are missing among the names of a directory; `None` means that no name belongs
    /// to the set. The size of the world is the one in the names, or else `expected_world`, or else the one implied by
    /// the highest rank.
    ///
    /// # Errors
    /// A text that names the file beyond the world, or the two sizes if the directory has sets of two sizes.
    pub(crate) fn gap<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
        expected_world: Option<u64>,
    ) -> Result<Option<Gap>, String> {
        let mut ranks = BTreeSet::new();
        let mut worlds = BTreeSet::new();
        let mut digits = (usize::MAX, usize::MAX);
        for (rank, world) in names.into_iter().filter_map(|name| self.numbers(name)) {
            ranks.insert(rank.0);
            digits.0 = digits.0.min(rank.1);
            if let Some((world, world_digits)) = world {
                worlds.insert(world);
                digits.1 = digits.1.min(world_digits);
            }
        }
        let (Some(lowest), Some(highest)) = (ranks.first(), ranks.last()) else {
            return Ok(None);
        };
        if let (Some(small), Some(large), true) = (worlds.first(), worlds.last(), worlds.len() > 1) {
            return Err(format!(
                "the directory has sets of {small} and of {large} files: two saves are mixed"
            ));
        }
        let told_world = worlds.first().copied();
        if let (Some(told), Some(expected)) = (told_world, expected_world)
            && told != expected
        {
            let told = words::count(told, "rank");
            return Err(format!("the files are of {told}, but {expected} were expected"));
        }
        let world = match told_world.or(expected_world) {
            Some(world) => world,
            None => highest.saturating_sub(self.first_rank).saturating_add(1),
        };
        let outside = |rank: &u64| *rank < self.first_rank || *rank - self.first_rank >= world;
        if let Some(rank) = [lowest, highest].into_iter().find(|rank| outside(rank)) {
            let name = self.name(*rank, world, digits);
            let ranks = words::count(world, "rank");
            return Err(format!("{name} exists, but the world has {ranks}"));
        }
        // Every rank is inside, so there are no more than the world has.
        let missing_count = world.saturating_sub(ranks.len() as u64);
        let missing = (self.first_rank..)
            .take_while(|rank| rank - self.first_rank < world)
            .filter(|rank| !ranks.contains(rank))
            .take(NAMED)
            .map(|rank| self.name(rank, world, digits))
            .collect();
        Ok(Some(Gap { missing, missing_count, world }))
    }

    fn numbers(&self, name: &str) -> Option<(Number, Option<Number>)> {
        let mut rest = name;
        let (mut rank, mut world) = (None, None);
        for piece in &self.pieces {
            if let Piece::Text(text) = piece {
                rest = rest.strip_prefix(text.as_str())?;
                continue;
            }
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, after) = rest.split_at_checked(digits)?;
            let number = (number.parse::<u64>().ok()?, digits);
            rest = after;
            *(if *piece == Piece::Rank { &mut rank } else { &mut world }) = Some(number);
        }
        Some((rank.filter(|_| rest.is_empty())?, world))
    }

    /// Returns the name of a rank's file, with as many digits as the other names.
    fn name(&self, rank: u64, world: u64, digits: (usize, usize)) -> String {
        let parts = self.pieces.iter().map(|piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Rank => format!("{rank:0width$}", width = digits.0.min(20)),
            Piece::World => format!("{world:0width$}", width = digits.1.min(20)),
        });
        shown(&parts.collect::<String>())
    }
}

/// The missing files of a set.
#[derive(Debug)]
pub(crate) struct Gap {
    /// The names of the first missing files.
    pub(crate) missing: Vec<String>,
    pub(crate) missing_count: u64,
    pub(crate) world: u64,
}

/// `a is missing`, `a, b, c and 4 more are missing`.
pub(crate) fn are_missing(first: &[String], count: u64) -> String {
    let more = count.saturating_sub(first.len() as u64);
    let first = first.join(", ");
    match (count, more) {
        (1, _) => format!("{first} is missing"),
        (_, 0) => format!("{first} are missing"),
        _ => format!("{first} and {more} more are missing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(
        pattern: &str,
        first: u64,
        names: &[&str],
        expected: impl Into<Option<u64>>,
    ) -> Result<Option<u64>, String> {
        let pattern = RankPattern::new(pattern, first).unwrap();
        match pattern.gap(names.iter().copied(), expected.into())? {
            Some(gap) if gap.missing_count > 0 => Err(are_missing(&gap.missing, gap.missing_count)),
            gap => Ok(gap.map(|gap| gap.world)),
        }
    }

    #[test]
    fn patterns_have_one_rank() {
        for text in ["", "rank", "{world}", "{rank}{world}", "{rank}_{rank}", "{rank", "{n}_{rank}", "{}"] {
            assert_eq!(RankPattern::new(text, 0), None, "{text}");
        }
        for text in ["{rank}", "rank_{rank}", "{rank}-of-{world}", "w{world}r{rank}.pt"] {
            assert!(RankPattern::new(text, 0).is_some(), "{text}");
        }
    }

    #[test]
    fn whole_sets_have_a_size() {
        let names = [
            "rng_state_1.pth",
            "model.safetensors",
            "rng_state_0.pth",
            "rng_state_.pth",
            "rng_state_2.pth.tmp",
        ];
        assert_eq!(world("rng_state_{rank}.pth", 0, &names, None), Ok(Some(2)));
        assert_eq!(world("rng_state_{rank}.pth", 0, &names, 2), Ok(Some(2)));
        assert_eq!(world("random_states_{rank}.pkl", 0, &names, 2), Ok(None));
        let many: Vec<_> = (0..12).map(|rank| format!("rank_{rank}.pt")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert_eq!(world("rank_{rank}.pt", 0, &many, None), Ok(Some(12)));
        let verl = ["model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"];
        assert_eq!(world("model_world_size_{world}_rank_{rank}.pt", 0, &verl, None), Ok(Some(2)));
        let shards = ["model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"];
        assert_eq!(world("model-{rank}-of-{world}.safetensors", 1, &shards, None), Ok(Some(2)));
    }

    #[test]
    fn missing_ranks_are_named() {
        assert_eq!(
            world("rng_state_{rank}.pth", 0, &["rng_state_0.pth"], 2),
            Err("rng_state_1.pth is missing".to_owned())
        );
        assert_eq!(
            world("rank_{rank}.pt", 0, &["rank_1.pt", "rank_3.pt"], None),
            Err("rank_0.pt, rank_2.pt are missing".to_owned())
        );
        assert_eq!(
            world("process_{rank}-of-{world}.json", 0, &["process_3-of-8.json"], None),
            Err("process_0-of-8.json, process_1-of-8.json, process_2-of-8.json and 4 more are missing"
                .to_owned())
        );
        assert_eq!(
            world("m-{rank}-of-{world}.safetensors", 1, &["m-00002-of-00002.safetensors"], None),
            Err("m-00001-of-00002.safetensors is missing".to_owned())
        );
        // Without a size in the names, only the highest rank implies it.
        assert_eq!(world("rng_state_{rank}.pth", 0, &["rng_state_0.pth"], None), Ok(Some(1)));
    }

    #[test]
    fn sizes_that_do_not_agree_are_told() {
        let mixed = ["m_world_size_2_rank_0.pt", "m_world_size_4_rank_1.pt"];
        assert_eq!(
            world("m_world_size_{world}_rank_{rank}.pt", 0, &mixed, None),
            Err("the directory has sets of 2 and of 4 files: two saves are mixed".to_owned())
        );
        assert_eq!(
            world("m_world_size_{world}_rank_{rank}.pt", 0, &mixed[..1], 4),
            Err("the files are of 2 ranks, but 4 were expected".to_owned())
        );
        assert_eq!(
            world("rank_{rank}.pt", 0, &["rank_0.pt", "rank_2.pt"], 2),
            Err("rank_2.pt exists, but the world has 2 ranks".to_owned())
        );
        assert_eq!(
            world("m-{rank}-of-{world}", 1, &["m-0-of-1"], None),
            Err("m-0-of-1 exists, but the world has 1 rank".to_owned())
        );
    }

    #[test]
    fn huge_numbers_cost_nothing() {
        let why = world("rank_{rank}.pt", 0, &["rank_18446744073709551614.pt"], None).unwrap_err();
        assert!(why.starts_with("rank_00000000000000000000.pt, "), "{why}");
        assert_eq!(world("rank_{rank}.pt", 0, &["rank_18446744073709551616.pt"], None), Ok(None));
        let zeros = format!("rank_{}1.pt", "0".repeat(100_000));
        let why = world("rank_{rank}.pt", 0, &[&zeros], None).unwrap_err();
        assert!(why.len() < 300, "{why}");
    }
}
