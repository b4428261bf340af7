#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

/// The values that chat templates compute with: Python's, as far as Jinja templates can tell.
namespace millrace::text::jinja {

/// Everything on a Heap.
struct Object {
  virtual ~Object() = default;
};

struct StringObject : Object {
  explicit StringObject(std::string content, bool markup = false) : text(std::move(content)), is_markup(markup) {}
  std::string text;
  bool is_markup;  ///< Python's Markup: safe HTML, which escapes what is added to it
};
/// An interned name: equal names of one template are one object.
using Symbol = const StringObject*;

/// An integer beyond 64 bits, as JSON writes it.
struct BigInteger : Object {
  BigInteger(std::string text, double value) : digits(std::move(text)), nearest(value) {}
  std::string digits;  ///< with a minus before it if negative
  double nearest;
};

class Heap;
struct ListObject;
struct DictObject;
struct LoopObject;
struct MacroObject;
struct MethodObject;
struct Builtin;

enum class Kind : uint8_t {
  kAbsent,  ///< an optional argument that was not given; never seen by templates
  kUndefined,
  kNone,
  kBool,
  kInt,
  kBigInt,  ///< an integer beyond 64 bits: it is compared and written, but not computed with
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kNamespace,
  kLoop,
  kMacro,
  kMethod,
  kFunction,
};

/// A small handle; what it points to lives on the Heap of the render, or of the template for constants.
class Value {
 public:
  Value() : kind_(Kind::kNone) {}
  template <std::same_as<bool> Bool>  // pointers must not become booleans
  Value(Bool value) : kind_(Kind::kBool) {
    data_.boolean = value;
  }
  Value(int64_t value) : kind_(Kind::kInt) { data_.integer = value; }
  Value(double value) : kind_(Kind::kFloat) { data_.number = value; }
  Value(const BigInteger* value) : kind_(Kind::kBigInt) { data_.big = value; }
  Value(const StringObject* value) : kind_(Kind::kString) { data_.string = value; }
  Value(const LoopObject* value) : kind_(Kind::kLoop) { data_.loop = value; }
  Value(const MacroObject* value) : kind_(Kind::kMacro) { data_.macro = value; }
  Value(const MethodObject* value) : kind_(Kind::kMethod) { data_.method = value; }
  Value(const Builtin* value) : kind_(Kind::kFunction) { data_.function = value; }
  static Value absent() { return Value(Kind::kAbsent); }
  /// `owner` is the kind of what lacks the attribute `name`; kAbsent for a variable. `name` may be null.
  static Value undefined(Symbol name, Kind owner = Kind::kAbsent);
  static Value list(ListObject* items) { return Value(Kind::kList, items); }
  static Value tuple(ListObject* items) { return Value(Kind::kTuple, items); }
  static Value dict(DictObject* entries) { return Value(Kind::kDict, entries); }
  static Value name_space(DictObject* entries) { return Value(Kind::kNamespace, entries); }

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] bool is(Kind kind) const { return kind_ == kind; }
  [[nodiscard]] bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  /// Returns whether Python's operators take the value for an int: True, False or an integer.
  [[nodiscard]] bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  [[nodiscard]] bool is_number() const { return is_integral() || kind_ == Kind::kFloat || kind_ == Kind::kBigInt; }

  // Each requires the kind it names.
  [[nodiscard]] bool boolean() const { return data_.boolean; }
  [[nodiscard]] int64_t integer() const { return kind_ == Kind::kBool ? int64_t{data_.boolean} : data_.integer; }
  [[nodiscard]] double number() const {
    if (kind_ == Kind::kBigInt) return data_.big->nearest;
    return is_integral() ? static_cast<double>(integer()) : data_.number;
  }
  [[nodiscard]] const std::string& digits() const { return data_.big->digits; }
  [[nodiscard]] const std::string& string() const { return data_.string->text; }
  /// Returns whether the value is a string that is Markup.
  [[nodiscard]] bool is_markup() const { return kind_ == Kind::kString && data_.string->is_markup; }
  [[nodiscard]] Symbol string_object() const { return data_.string; }
  [[nodiscard]] std::vector<Value>& items() const;
  [[nodiscard]] DictObject& entries() const { return *data_.dict; }
  [[nodiscard]] const LoopObject& loop() const { return *data_.loop; }
  [[nodiscard]] const MacroObject& macro() const { return *data_.macro; }
  [[nodiscard]] const MethodObject& method() const { return *data_.method; }
  [[nodiscard]] const Builtin& function() const { return *data_.function; }
  [[nodiscard]] const void* address() const { return data_.dict; }
  /// Accounts for work on a list, a tuple or a dict to the render it belongs to; nothing for other kinds.
  void charge_steps(uint64_t count) const;
  /// Python's message for the use of an undefined value.
  [[nodiscard]] std::string undefined_message() const;

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  Value(Kind kind, ListObject* items) : kind_(kind) { data_.list = items; }
  Value(Kind kind, DictObject* entries) : kind_(kind) { data_.dict = entries; }

  Kind kind_;
  Kind owner_ = Kind::kAbsent;
  union {
    bool boolean;
    int64_t integer;
    double number;
    const BigInteger* big;
    const StringObject* string;
    ListObject* list;
    DictObject* dict;
    const LoopObject* loop;
    const MacroObject* macro;
    const MethodObject* method;
    const Builtin* function;
  } data_{.integer = 0};
};

struct ListObject : Object {
  explicit ListObject(Heap& owner) : heap(&owner) {}
  Heap* heap;
  std::vector<Value> items;
};

/// Keeps insertion order. String keys of larger dicts are found through an index.
struct DictObject : Object {
  explicit DictObject(Heap& owner) : heap(&owner) {}
  Heap* heap;
  std::vector<std::pair<Value, Value>> entries;

  [[nodiscard]] const Value* find(std::string_view key) const;
  [[nodiscard]] const Value* find(const Value& key) const;
  void set(const Value& key, const Value& value);
  bool erase(const Value& key);

 private:
  [[nodiscard]] size_t index_of(std::string_view key) const;
  [[nodiscard]] size_t index_of(const Value& key) const;
  std::unordered_map<std::string_view, size_t> index_;
};

struct MethodObject : Object {
  MethodObject(Value object, const Builtin* called) : self(object), method(called) {}
  Value self;
  const Builtin* method;
};

/// A failure inside a template. Thrown while parsing and rendering, caught where a render begins.
struct TemplateError {
  int line;  ///< 0 until the evaluator adds it
  std::string message;
};

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::string message;
  (message.append(parts), ...);
  throw TemplateError{0, std::move(message)};
}

/// Owns what one render (or one compiled template) makes, all freed together, so that cycles do no harm. Throws
/// TemplateError when more than its budget was asked for over its life: of memory, and of steps, which count the work.
class Heap {
 public:
  explicit Heap(size_t budget_bytes, uint64_t steps = UINT64_MAX) : left_(budget_bytes), steps_left_(steps) {}

  template <class T, class... Args>
  T* make(Args&&... args) {
    charge(sizeof(T) + 16);
    auto object = std::make_unique<T>(std::forward<Args>(args)...);
    T* raw = object.get();
    objects_.push_back(std::move(object));
    return raw;
  }
  Value string(std::string text) {
    charge(text.size());
    return make<StringObject>(std::move(text));
  }
  /// Makes a string that is Markup where `is_markup`.
  Value string(std::string text, bool is_markup) {
    charge(text.size());
    return make<StringObject>(std::move(text), is_markup);
  }
  Value big_integer(std::string_view digits, double nearest) {
    charge(digits.size());
    return make<BigInteger>(std::string(digits), nearest);
  }
  Value list(std::vector<Value> items) { return Value::list(list_object(std::move(items))); }
  Value tuple(std::vector<Value> items) { return Value::tuple(list_object(std::move(items))); }
  /// Call before the memory is taken where a template chooses the size.
  void charge(size_t bytes);
  void charge_steps(uint64_t count);

 private:
  ListObject* list_object(std::vector<Value> items);

  size_t left_;
  uint64_t steps_left_;
  std::vector<std::unique_ptr<Object>> objects_;
};

[[nodiscard]] bool is_true(const Value& value);
[[nodiscard]] bool equals(const Value& a, const Value& b);
/// Returns a negative number, 0 or a positive one. Throws TemplateError where Python's < does; `op` is for the message.
[[nodiscard]] int compare(const Value& a, const Value& b, std::string_view op);
/// Sorts pairs, stable, by `less` of their first values, which may throw and may be inconsistent (NaN).
void merge_sort(std::vector<std::pair<Value, Value>>& pairs,
                const std::function<bool(const Value&, const Value&)>& less);
/// Python's type(value).__name__.
[[nodiscard]] std::string_view type_name(Kind kind);
/// Python's str() and repr().
[[nodiscard]] std::string to_str(const Value& value);
[[nodiscard]] std::string to_repr(const Value& value);
[[nodiscard]] std::string float_repr(double value);

}  // namespace millrace::text::jinja
