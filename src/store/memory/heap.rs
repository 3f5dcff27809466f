//! An expiry index: a heap of slots by moment, from which any slot can be removed.

use super::{
    clock::{Moment, NEVER},
    steps,
};

/// Children per node. Four nodes of 16 bytes are one cache line.
const ARITY: usize = 4;

/// One entry of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) at: Moment,
    pub(super) slot: u32,
}

/// Orders slots by moment, the earliest first.
///
/// It holds exactly the slots that were pushed and not removed. Each method that moves slots tells `placed` the new
/// place of each, so that the owner can name it later. Pushing a moment later than all others takes constant time,
/// which is the usual case, as most records live equally long.
#[derive(Debug)]
pub(super) struct Heap {
    nodes: Vec<Due>,
    /// The moment of the first node, here so that looking at it touches no other memory.
    first_at: Moment,
}

impl Default for Heap {
    fn default() -> Self {
        Self { nodes: Vec::new(), first_at: NEVER }
    }
}

impl Heap {
    /// Returns the entry with the earliest moment.
    pub(super) fn first(&self) -> Option<Due> {
        self.nodes.first().copied()
    }

    /// Returns the earliest moment, or [`NEVER`].
    pub(super) fn first_at(&self) -> Moment {
        self.first_at
    }

    pub(super) fn push(&mut self, due: Due, placed: impl FnMut(u32, u32)) {
        let place = self.nodes.len();
        self.first_at = self.first_at.min(due.at);
        steps::push(&mut self.nodes, due);
        self.rise(place, placed);
    }

    /// Removes the entry at `place`.
    pub(super) fn remove(&mut self, place: u32, placed: impl FnMut(u32, u32)) {
        let place = place as usize;
        self.nodes.swap_remove(place);
        if place < self.nodes.len() {
            self.settle(place, placed);
        }
        steps::shrink(&mut self.nodes);
        if place == 0 {
            self.read_first();
        }
    }

    /// Changes the moment of the entry at `place`.
    pub(super) fn postpone(&mut self, place: u32, at: Moment, placed: impl FnMut(u32, u32)) {
        self.nodes[place as usize].at = at;
        self.settle(place as usize, placed);
        self.read_first();
    }

    /// Changes the slot of the entry at `place`.
    pub(super) fn rename(&mut self, place: u32, slot: u32) {
        self.nodes[place as usize].slot = slot;
    }

    fn read_first(&mut self) {
        self.first_at = self.nodes.first().map_or(NEVER, |due| due.at);
    }

    fn settle(&mut self, place: usize, placed: impl FnMut(u32, u32)) {
        if place > 0 && self.nodes[place].at < self.nodes[(place - 1) / ARITY].at {
            self.rise(place, placed);
        } else {
            self.sink(place, placed);
        }
    }

    fn rise(&mut self, mut place: usize, mut placed: impl FnMut(u32, u32)) {
        let due = self.nodes[place];
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if self.nodes[parent].at <= due.at {
                break;
            }
            self.put(place, self.nodes[parent], &mut placed);
            place = parent;
        }
        self.put(place, due, &mut placed);
    }

    fn sink(&mut self, mut place: usize, mut placed: impl FnMut(u32, u32)) {
        let due = self.nodes[place];
        loop {
            let first = place * ARITY + 1;
            let children = first..(first + ARITY).min(self.nodes.len());
            let Some(child) = children.min_by_key(|child| self.nodes[*child].at) else { break };
            if due.at <= self.nodes[child].at {
                break;
            }
            self.put(place, self.nodes[child], &mut placed);
            place = child;
        }
        self.put(place, due, &mut placed);
    }

    fn put(&mut self, place: usize, due: Due, placed: &mut impl FnMut(u32, u32)) {
        self.nodes[place] = due;
        let place =
            u32::try_from(place).expect("an index has no more places than a shard has slots, which fit in 32 bits");
        placed(due.slot, place);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Plays 20,000 random steps against a sorted map.
    #[test]
    fn the_index_agrees_with_a_sorted_map() {
        let (mut heap, mut places, mut model) = (Heap::default(), BTreeMap::new(), BTreeMap::new());
        let mut seed = 7_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for slot in 0..20_000_u32 {
            let picked = model.keys().nth(random(64) as usize).copied();
            match (random(5), picked) {
                (0 | 1, _) | (_, None) => {
                    let at = random(1000);
                    model.insert(slot, at);
                    heap.push(Due { at, slot }, |slot, place| {
                        places.insert(slot, place);
                    });
                }
                (2 | 3, Some(slot)) => {
                    model.remove(&slot);
                    let place = places.remove(&slot).unwrap();
                    heap.remove(place, |slot, place| {
                        places.insert(slot, place);
                    });
                }
                (_, Some(slot)) => {
                    let at = random(1000);
                    model.insert(slot, at);
                    heap.postpone(places[&slot], at, |slot, place| {
                        places.insert(slot, place);
                    });
                }
            }
            assert_eq!(heap.first().map(|due| due.at), model.values().min().copied());
            assert_eq!(heap.first_at(), heap.first().map_or(NEVER, |due| due.at));
            assert_eq!(heap.nodes.len(), model.len());
            assert_eq!(places.len(), model.len());
        }
        for (slot, place) in &places {
            assert_eq!(heap.nodes[*place as usize], Due { at: model[slot], slot: *slot });
        }
    }
}
