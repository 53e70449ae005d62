#include "impl/engine/stream.h"

namespace lamina {

void Event::become(State state) {
  {
    const std::lock_guard lock(mutex_);
    state_ = state;
  }
  changed_.notify_all();
}

void Event::set() { become(State::set); }
void Event::reset() { become(State::unset); }
void Event::cancel() { become(State::cancelled); }

bool Event::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return state_ != State::unset; });
  return state_ == State::set;
}

Stream::Stream() : thread_([this] { run(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  work_came_.notify_one();
  thread_.join();
}

void Stream::enqueue(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  work_came_.notify_one();
}

void Stream::synchronize() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return queue_.empty() && !busy_; });
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_came_.wait(lock, [&] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;
    }
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    work();
    lock.lock();
    busy_ = false;
    if (queue_.empty()) {
      idle_.notify_all();
    }
  }
}

}  // namespace lamina
