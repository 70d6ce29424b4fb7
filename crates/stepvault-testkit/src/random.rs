//! Random numbers from a seed, the same on every machine.

/// A generator (`SplitMix64`).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// Returns an index below `bound`, which is not 0.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("it is below a usize")
    }

    /// Returns `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend_from_slice(&self.number().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }

    /// Returns `count` different numbers from 1 to `last`, in order; all of them when there are no more.
    pub fn some_of(&mut self, last: usize, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (1..=last).collect();
        while all.len() > count {
            let which = self.index(all.len());
            all.remove(which);
        }
        all
    }
}

/// Returns bytes that depend on the seed and repeat nowhere near.
pub fn bytes(seed: u64, count: usize) -> Vec<u8> {
    Random(seed).bytes(count)
}
