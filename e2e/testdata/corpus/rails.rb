# Sends the corpus with Action Mailer, by the settings in recipe.txt as an application reads them. What GitLab,
# Discourse and Mastodon make of them was taken from their sources.
require "action_mailer"
require "base64"
require "json"
require "ostruct"

recipe = File.read("recipe.txt")

# settings returns smtp_settings of Action Mailer.
def settings(application, recipe, key)
  env = recipe.scan(/^([A-Z_]+)=(.*)$/).to_h.transform_values { |v| v == "KEY" ? key : v }
  case application
  when "Rails"
    config = OpenStruct.new(action_mailer: OpenStruct.new)
    eval(recipe.gsub("KEY", "key"))
    config.action_mailer.smtp_settings
  when "GitLab"
    gitlab = recipe.scan(/\['smtp_(\w+)'\] = (.*)$/).to_h.transform_values { |v| v == "KEY" ? key : eval(v) }
    { authentication: gitlab["authentication"].to_sym, address: gitlab["address"], port: gitlab["port"],
      user_name: gitlab["user_name"], password: gitlab["password"],
      enable_starttls_auto: gitlab["enable_starttls_auto"], openssl_verify_mode: "peer" }
  when "Discourse"
    { address: env["DISCOURSE_SMTP_ADDRESS"], port: env["DISCOURSE_SMTP_PORT"], authentication: "plain",
      user_name: env["DISCOURSE_SMTP_USER_NAME"], password: env["DISCOURSE_SMTP_PASSWORD"],
      enable_starttls_auto: env["DISCOURSE_SMTP_ENABLE_START_TLS"] == "true" }
  when "Mastodon"
    { address: env["SMTP_SERVER"], port: env["SMTP_PORT"], user_name: env["SMTP_LOGIN"], password: env["SMTP_PASSWORD"],
      authentication: env["SMTP_AUTH_METHOD"], enable_starttls: env["SMTP_ENABLE_STARTTLS"] == "always",
      openssl_verify_mode: "peer" }
  end
end

class Mailer < ActionMailer::Base
  def letter(l)
    headers(l["headers"]) if l["headers"]
    headers("Message-ID" => l["message_id"]) unless l["message_id"].empty?
    headers("X-Mailgun-Deliver-By" => Time.parse(l["at"]).rfc2822) if l["at"]
    (l["files"] || []).each do |f|
      type = f["type"] + (f["params"] || {}).map { |k, v| "; #{k}=#{v}" }.join
      content = { content: Base64.decode64(f["content"]), content_type: type }
      content[:content_id] = "<#{f["content_id"]}>" unless f["content_id"].empty?
      (f["content_id"].empty? ? attachments : attachments.inline)[f["name"]] = content
    end
    sender = Mail::Address.new(l["from"]).tap { |a| a.display_name = l["name"] }.format
    mail(from: sender, to: l["to"], cc: l["cc"], bcc: l["bcc"], reply_to: l["reply_to"].presence,
      subject: l["subject"]) do |format|
      format.text { render plain: l["text"] } unless l["text"].empty?
      format.html { render html: l["html"].html_safe } unless l["html"].empty?
    end
  end
end

application = ENV["APPLICATION"]
ActionMailer::Base.delivery_method = :smtp
ActionMailer::Base.smtp_settings = settings(application, recipe, ENV["KEY"])
JSON.parse(File.read("corpus.json")).each do |l|
  Mailer.letter(l).deliver_now
  puts "sent"
end
ActionMailer::Base.smtp_settings = settings(application, recipe, "wrong")
begin
  Mailer.letter(JSON.parse(File.read("corpus.json"))[0]).deliver_now
rescue Net::SMTPAuthenticationError => e
  puts "refused #{e.message}"
end
