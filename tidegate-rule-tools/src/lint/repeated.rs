//! Lint about `identify.repeated`: a value that is chosen among several may not be the one that the service reads.

use tidegate_rules::Problem;
use tidegate_rules::internals::{CompiledFile, RepeatedPolicy};

pub(super) fn lint(file: &CompiledFile, lints: &mut Vec<Problem>) {
    for (name, policy, span) in &file.identify.repeated {
        if *policy == RepeatedPolicy::Reject {
            continue;
        }
        let message = format!(
            "of several values of {name} the {} counts: a client avoids its limit if the service reads another one",
            policy.as_str()
        );
        let help = "leave `repeated` out, so that such requests are refused, unless the service reads the same one";
        lints.push(Problem::warning("repeated-values", message, span.clone()).with_help(help));
    }
}
