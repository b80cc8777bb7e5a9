require "action_mailer"

ENV["SAFEDELIVR_KEY"] = ENV.fetch("KEY")
require_relative "config/initializers/safedelivr"
ActionMailer::Base.delivery_method = :safedelivr

class Mailer < ActionMailer::Base
  def invoice
    attachments["invoice.txt"] = "42.00"
    attachments.inline["logo.gif"] = { mime_type: "image/gif", content: "GIF89a" }
    mail(from: "Shop <shop@demo.test>", to: "Ann <ann@demo.test>", cc: "cc@demo.test", bcc: "bcc@demo.test",
      reply_to: "help@demo.test", subject: "Invoice {{x}}") do |format|
      format.text { render plain: "Dear {{x}}" }
      format.html { render html: "<p>Dear Ann<img src=\"#{attachments["logo.gif"].url}\"></p>".html_safe }
    end
  end

  def several
    mail(from: "shop@demo.test", to: ["one@demo.test", "two@demo.test"], subject: "To several") do |format|
      format.text { render plain: "Text" }
    end
  end
end

Mailer.invoice.deliver_now
Mailer.several.deliver_now
