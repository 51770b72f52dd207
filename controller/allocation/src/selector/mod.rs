//! CEL selectors of classes and claims, evaluated as the scheduler evaluates them
//! (`k8s.io/dynamic-resource-allocation/cel`).
//!
//! The result is for people and never decides an allocation. A selector that uses what is not built here,
//! such as `ip()`, is [`Evaluation::Unknown`]: nothing is claimed about it. The cost limits of CEL are not
//! counted.

mod amount;
mod device;
mod environment;
mod reads;
mod version;

use std::sync::{Arc, LazyLock};
use std::{fmt, thread};

use cel::common::ast::operators;
use cel::{Context, DeclarationError, Env, ExecutionError, Program, Value};
use k8s_openapi::api::resource::v1::Device;

use reads::{depth, required_network};

pub use reads::{Read, Reads};

/// The longest expression that the API server accepts, in bytes (`CELSelectorExpressionMaxLength`).
const MAX_LENGTH: usize = 10 << 10;

/// The deepest nesting of an expression. Evaluation recurses as deep, and a level takes up to 40 KiB of the 2
/// MiB of a thread. `&&` and `||` nest by the logarithm of their number.
const MAX_DEPTH: usize = 32;

/// A stack in which the parser can read every expression of [`MAX_LENGTH`]: it recurses for each term of
/// `1+1+1…`.
const PARSERS_STACK: usize = 256 << 20;

/// A compiled CEL expression.
pub struct Selector {
    text: String,
    program: Result<Program, String>,
}

/// The result of a selector for a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evaluation {
    /// The device is selected.
    Matches,
    /// The device is not selected.
    Differs,
    /// The expression has no value for the device, and the scheduler stops. The text says why.
    Fails(String),
    /// It is not known what the scheduler gets. The text says why.
    Unknown(String),
}

/// A device as selectors see it.
pub struct SelectableDevice {
    /// What every selector says of the device, if there is none.
    context: Result<Context<'static, 'static>, Evaluation>,
}

impl SelectableDevice {
    /// Prepares the device of this driver for selectors.
    pub fn new(driver: &str, device: &Device) -> Self {
        let missing = || Evaluation::Unknown("CEL could not be set up".to_owned());
        let environment = shared_environment().ok_or_else(missing);
        let context = environment.and_then(|environment| {
            let mut context = Context::with_env(environment);
            context.add_variable_as_val("device", device::value(driver, device)?);
            Ok(context)
        });
        Self { context }
    }
}

impl Selector {
    /// Compiles an expression, which may be one that the API server would not accept.
    pub fn new(expression: &str) -> Self {
        let program = if expression.len() > MAX_LENGTH {
            Err(format!("it is longer than {MAX_LENGTH} bytes"))
        } else {
            compiled(expression)
        };
        Self { text: expression.to_owned(), program }
    }

    /// Keeps an expression that is not compiled, for this reason.
    pub fn unread(expression: &str, problem: &str) -> Self {
        Self { text: expression.to_owned(), program: Err(problem.to_owned()) }
    }

    /// The expression.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns what the scheduler gets for this device.
    pub fn evaluate(&self, device: &SelectableDevice) -> Evaluation {
        let program = match &self.program {
            Ok(program) => program,
            Err(error) => return Evaluation::Unknown(format!("it cannot be read here: {error}")),
        };
        let context = match &device.context {
            Ok(context) => context,
            Err(evaluation) => return evaluation.clone(),
        };
        match program.execute(context) {
            Ok(Value::Bool(true)) => Evaluation::Matches,
            Ok(Value::Bool(false)) => Evaluation::Differs,
            Ok(value) => Evaluation::Fails(format!("its value is not a bool but a {}", value.type_of())),
            Err(error) => self.failure(program, &error),
        }
    }

    /// Tells what the scheduler would meet, too, from what only this evaluation cannot do.
    fn failure(&self, program: &Program, error: &ExecutionError) -> Evaluation {
        let references = program.references();
        if let Some(function) = references.functions().into_iter().find(|name| environment::is_missing(name))
        {
            return Evaluation::Unknown(format!("{function}() cannot be evaluated here"));
        }
        match error {
            ExecutionError::NoSuchKey(key) => Evaluation::Fails(format!("no such key: {key}")),
            ExecutionError::FunctionError { function, message } => {
                Evaluation::Fails(format!("{function}(): {}", first_line(message)))
            }
            ExecutionError::DivisionByZero(_) => Evaluation::Fails("division by zero".to_owned()),
            ExecutionError::IndexOutOfBounds(_) => Evaluation::Fails("index out of bounds".to_owned()),
            ExecutionError::NoSuchOverload(overload) if is_comparison(overload.function()) => {
                Evaluation::Fails(first_line(&overload.to_string()))
            }
            other => Evaluation::Unknown(first_line(&other.to_string())),
        }
    }

    /// Returns the ClaimNetwork that every selected device of the driver must have, if the expression says so
    /// as a class for a ClaimNetwork usually does: by `device.attributes["DRIVER"].network == "NAME"` in a
    /// conjunction.
    pub fn network(&self, driver: &str) -> Option<&str> {
        self.program.as_ref().ok().and_then(|program| required_network(program.expression(), driver))
    }

    /// Returns why the expression cannot be read here, if it cannot.
    pub fn problem(&self) -> Option<&str> {
        self.program.as_ref().err().map(String::as_str)
    }

    /// Returns what the expression reads of a device; nothing if it cannot be read.
    pub fn reads(&self) -> Reads {
        self.program.as_ref().map(|program| Reads::of(program.expression())).unwrap_or_default()
    }

    /// Whether the expression names the driver, and is about its devices.
    pub fn names(&self, driver: &str) -> bool {
        self.text.contains(&format!("\"{driver}\"")) || self.text.contains(&format!("'{driver}'"))
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Selector").field(&self.text).finish()
    }
}

/// Operators that have the same overloads here as in the scheduler.
fn is_comparison(function: &str) -> bool {
    [operators::LESS, operators::LESS_EQUALS, operators::GREATER, operators::GREATER_EQUALS, operators::INDEX]
        .contains(&function)
}

/// Compiles on a thread of its own. Only what is not too deep for usual stacks leaves it.
fn compiled(expression: &str) -> Result<Program, String> {
    let environment = shared_environment().ok_or("CEL could not be set up")?;
    let compile = || {
        let program = environment.compile(expression).map_err(|error| first_line(&error.to_string()))?;
        if depth(program.expression()) > MAX_DEPTH {
            return Err(format!("it is nested more than {MAX_DEPTH} deep"));
        }
        Ok(program)
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(PARSERS_STACK).spawn_scoped(scope, compile);
        let thread = thread.map_err(|error| format!("no thread can be started: {error}"))?;
        thread.join().unwrap_or_else(|_| Err("its parser fails".to_owned()))
    })
}

/// Parse errors draw the expression and an arrow on further lines.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// Returns the environment; `None` if its declarations contradict each other, which a test excludes.
fn shared_environment() -> Option<Arc<Env>> {
    static SHARED: LazyLock<Option<Arc<Env>>> = LazyLock::new(|| build().ok().map(Arc::new));
    SHARED.clone()
}

fn build() -> Result<Env, DeclarationError> {
    let mut environment = environment::build()?;
    amount::declare(&mut environment)?;
    version::declare(&mut environment)?;
    Ok(environment)
}

#[cfg(test)]
mod tests;
