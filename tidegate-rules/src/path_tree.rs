//! `PathTree`: finds all rules whose pattern matches a path, without trying each rule.
//!
//! A tree over the segments of the patterns. Rules are not ranked: every limit that matches applies.

use std::collections::HashMap;

use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::index::RuleIndices;
use crate::path::{PathPattern, Segment, first_segment, is_asterisk, segments};

/// Patterns with the rules that they belong to.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathTree {
    /// Rules for every path.
    everything: Vec<u32>,
    /// Rules for a single path: one lookup for the whole path.
    exact: HashMap<String, SmallVec<[u32; 1]>>,
    root: PathNode,
}

/// A node of the tree: the patterns for paths with a common prefix.
#[derive(Clone, Debug, Default)]
struct PathNode {
    /// Rules for the path that ends here.
    here: SmallVec<[u32; 1]>,
    /// Rules for every longer path.
    below: SmallVec<[u32; 1]>,
    /// Children by literal segment.
    literals: HashMap<SmolStr, PathNode>,
    /// The child for any segment.
    any: Option<Box<PathNode>>,
}

impl PathTree {
    /// Adds a rule for the paths of a pattern; a rule may have several.
    pub(crate) fn add(&mut self, pattern: &PathPattern, rule: u32) {
        if pattern.is_everything() {
            self.everything.push(rule);
            return;
        }
        if pattern.segments().iter().all(|segment| matches!(segment, Segment::Literal(_))) {
            return self.exact.entry(pattern.to_string()).or_default().push(rule);
        }
        let mut node = &mut self.root;
        for segment in pattern.segments() {
            node = match segment {
                Segment::Literal(literal) => node.literals.entry(literal.clone()).or_default(),
                Segment::Any => node.any.get_or_insert_default(),
                Segment::Rest => {
                    node.below.push(rule);
                    return;
                }
            };
        }
        node.here.push(rule);
    }

    /// Appends every rule with a pattern that matches a path in its normal form, once per pattern, in no particular order.
    ///
    /// The work grows with the number of nodes that the path reaches, at most two from each, not with the number of rules.
    pub(crate) fn find(&self, normal_path: &str, matches: &mut RuleIndices) {
        matches.extend_from_slice(&self.everything);
        if let Some(rules) = self.exact.get(normal_path) {
            matches.extend_from_slice(rules);
        }
        if !is_asterisk(normal_path) {
            self.root.find(segments(normal_path), matches);
        }
    }
}

impl PathNode {
    // Recursion is bounded by the deepest pattern, whatever the path.
    fn find(&self, path: &str, matches: &mut RuleIndices) {
        let Some((first, rest)) = first_segment(path) else {
            matches.extend_from_slice(&self.here);
            return;
        };
        matches.extend_from_slice(&self.below);
        if let Some(node) = self.literals.get(first) {
            node.find(rest, matches);
        }
        if let Some(node) = &self.any {
            node.find(rest, matches);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate::attributes::normalize_path;

    use super::*;

    fn path_tree(patterns: &[&str]) -> (Vec<PathPattern>, PathTree) {
        let patterns: Vec<_> = patterns.iter().map(|text| PathPattern::parse(text).unwrap()).collect();
        let mut path_tree = PathTree::default();
        for (rule, pattern) in (0..).zip(&patterns) {
            path_tree.add(pattern, rule);
        }
        (patterns, path_tree)
    }

    fn find_rules(path_tree: &PathTree, path: &str) -> Vec<u32> {
        let mut matches = RuleIndices::new();
        path_tree.find(path, &mut matches);
        matches.sort_unstable();
        matches.into_vec()
    }

    #[test]
    fn every_matching_rule_is_found_not_only_the_most_specific() {
        let (_, path_tree) =
            path_tree(&["*", "/", "/*", "/api/*", "/api/{x}", "/api/users", "/api/users/{id}", "/api"]);
        for (path, expected) in [
            ("*", &[0, 2][..]),
            ("/", &[0, 1, 2]),
            ("/other", &[0, 2]),
            ("/api", &[0, 2, 7]),
            ("/api/users", &[0, 2, 3, 4, 5]),
            ("/api/rides", &[0, 2, 3, 4]),
            ("/api/users/7", &[0, 2, 3, 6]),
            ("/api/users/7/x", &[0, 2, 3]),
        ] {
            assert_eq!(find_rules(&path_tree, path), expected, "{path}");
        }
    }

    #[test]
    fn a_rule_may_have_several_patterns_and_a_pattern_several_rules() {
        let mut path_tree = PathTree::default();
        for (pattern, rule) in [("/a", 7), ("/a", 8), ("/b", 7), ("/{x}", 7)] {
            path_tree.add(&PathPattern::parse(pattern).unwrap(), rule);
        }
        assert_eq!(find_rules(&path_tree, "/a"), [7, 7, 8]);
        assert_eq!(find_rules(&path_tree, "/b"), [7, 7]);
        assert_eq!(find_rules(&PathTree::default(), "/a"), [0; 0]);
    }

    #[test]
    fn a_path_far_deeper_than_any_pattern_does_not_overflow_the_stack() {
        let (_, path_tree) = path_tree(&["/a/*", "/{x}/{y}"]);
        assert_eq!(find_rules(&path_tree, &"/a".repeat(100_000)), [0]);
    }

    fn patterns() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec("((/(a|b|\\{x\\})){0,1}(/(a|b|\\{y\\})){0,1}(/(a|b|\\{z\\}|\\*)){0,1})", 0..20)
    }

    proptest! {
        #[test]
        fn the_tree_finds_the_same_rules_as_trying_each_rule(texts in patterns(), path in "((/([abc]|\\.\\.)?){1,4}|\\*)") {
            let texts: Vec<_> = texts.iter().map(|text| if text.is_empty() { "/" } else { text }).collect();
            let (patterns, path_tree) = path_tree(&texts);
            let tried: Vec<u32> =
                (0..).zip(&patterns).filter(|(_, pattern)| pattern.matches(&path)).map(|(rule, _)| rule).collect();
            prop_assert_eq!(find_rules(&path_tree, &path), tried);
        }
    }

    #[test]
    fn no_path_panics() {
        let (patterns, path_tree) = path_tree(&["/", "/*", "/{x}", "/a/{x}/*", "/{x}/b"]);
        bolero::check!().with_type::<String>().for_each(|text| {
            // Even one that is not in its normal form.
            let _ = find_rules(&path_tree, text);
            let path = normalize_path(text);
            assert_eq!(
                find_rules(&path_tree, &path).len(),
                patterns.iter().filter(|pattern| pattern.matches(&path)).count()
            );
        });
    }
}
