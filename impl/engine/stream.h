// CUDA's stream-and-event rule on the CPU: a stream is a thread that runs closures in order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace lamina {

// Set once a step by the op that is done; waited for, without spinning, by ops of other streams.
class Event {
 public:
  void set();
  void reset();
  void cancel();  // wakes everybody; until reset() every wait returns false
  bool wait();    // true once set, false once cancelled

 private:
  enum class State : std::uint8_t { unset, set, cancelled };
  void become(State state);

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::unset;
};

// Closures must not throw: whoever enqueues them deals with their errors.
class Stream {
 public:
  Stream();
  ~Stream();  // runs what has been enqueued, then ends the thread
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void enqueue(std::function<void()> work);
  void synchronize();  // returns when everything enqueued so far has run

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable work_came_;
  std::condition_variable idle_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false;
  bool ending_ = false;
  std::thread thread_;  // last: starts when everything above is there
};

}  // namespace lamina
